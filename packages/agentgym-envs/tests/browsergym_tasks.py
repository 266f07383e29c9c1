"""A task as users of BrowserGym write it, on a page of its own, registered as `browsergym/shelf.borrow`."""

from __future__ import annotations

from typing import Any

from browsergym.core.registration import register_task
from browsergym.core.task import AbstractBrowserTask

BOOKS = ("Emma", "Ulysses", "Dracula")
PAGE = """<title>Shelf</title><ul>{}</ul><script>
document.querySelectorAll("button").forEach(b => b.onclick = () => document.title = "Borrowed " + b.dataset.book)
</script>"""


class BorrowTask(AbstractBrowserTask):
    """Borrow a book, and tell the user its title. The user reminds an agent that only borrows it."""

    def __init__(self, seed: int, shelf: str = "A") -> None:
        super().__init__(seed)
        self.slow_mo, self._shelf, self._book = 0, shelf, BOOKS[seed % len(BOOKS)]

    @classmethod
    def get_task_id(cls) -> str:
        return "shelf.borrow"

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        page.set_content(PAGE.format("".join(f"<li><button data-book={b}>Borrow {b}</button></li>" for b in BOOKS)))
        return f"Borrow {self._book} from shelf {self._shelf}, and tell me.", {}

    def validate(self, page: Any, chat_messages: list[dict[str, str]]) -> tuple[float, bool, str, dict[str, Any]]:
        if page.title() == "Shelf":
            return 0.0, False, "", {}
        told = chat_messages[-1]["role"] == "assistant" and self._book in chat_messages[-1]["message"]
        if page.title() != f"Borrowed {self._book}":
            return 0.0, True, "", {}
        return (1.0, True, "", {}) if told else (0.0, False, "Which one is it?", {})


register_task(BorrowTask.get_task_id(), BorrowTask)
