"""The HTTP server for environments. Only this package uses FastAPI and uvicorn; importing it loads neither."""
