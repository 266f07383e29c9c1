"""Worlds over HTTP. FastAPI and uvicorn live in this package and nowhere else; importing it loads neither."""
