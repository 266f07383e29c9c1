"""Tests of the thoughts and plans of WebArena's expert on constructed snapshots."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.expert.reasons import Situation
from agentgym_envs.worlds.webarena.page.geometry import Box
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot
from agentgym_envs.worlds.webarena.sites.tasks import Step, back, choose, click, fill, go, press, stop, tab
from constructed_snapshots import LAYOUT

OBJECTIVE = "Sort the reviews of the Blue Kettle by date."
BOX = Box(0, 0, 10, 10)


def situation(*steps: Step, action: str = "click [1]", visible: tuple[str, ...] = ()) -> Situation:
    nodes = tuple(Node(i, "link", name, (), 0, 1, BOX, BOX, i, "frame", "visible") for i, name in enumerate(visible, 1))
    hidden = Node(len(nodes) + 1, "link", "Secret", (), 0, 1, BOX, None, 99, "frame", "below")
    return Situation(OBJECTIVE, "Shop", Snapshot((*nodes, hidden), LAYOUT, False), steps, action)


def thought(*steps: Step, action: str = "click [1]", visible: tuple[str, ...] = ()) -> str:
    return situation(*steps, action=action, visible=visible).thought().removeprefix("I am on 'Shop'. ")


def test_thought_relates_the_element_to_the_objective() -> None:
    assert thought(click("link", "Blue Kettle"), click("link", "Date"), visible=("Blue Kettle",)) == (
        "There is the link 'Blue Kettle', which the objective names. The link 'Date' comes after that."
    )
    assert thought(click("link", "Review 7"), stop(), visible=("Review 7",)) == (
        "There is the link 'Review 7', and the objective has to do with 'Review'. That should be all that is asked for."
    )
    assert thought(click("link", "More"), stop("12 May"), visible=("More",)) == (
        "There is the link 'More', which should lead on. It should show me the answer."
    )


def test_thoughts_about_fields_and_options() -> None:
    assert thought(fill("searchbox", "Find", "blue kettle"), visible=("Find",)) == (
        "There is the searchbox 'Find'; I put words of the objective there: 'blue kettle'."
    )
    assert thought(fill("searchbox", "Find", "kettle/blue"), visible=("Find",)) == (
        "There is the searchbox 'Find'; I put words of the objective there: 'kettle/blue'."
    )
    assert thought(fill("searchbox", "Find", "Red Pan"), visible=("Find",)) == (
        "There is the searchbox 'Find'; I put what I know by now there: 'Red Pan'."
    )
    assert thought(choose("Sort by", "Date"), visible=("Sort by",)) == (
        "There is the combobox 'Sort by'; of its options I need 'Date', as the objective has it."
    )


def test_hidden_elements_are_not_named_early() -> None:
    hidden = click("link", "Secret")
    assert thought(hidden, action="scroll [down]") == "What I look for isn't in sight, so I scroll."
    assert thought(hidden) == "What I need is on this page, though not in sight."
    assert thought(hidden, action="goto [http://shop.example/]") == (
        "What I look for isn't on this page, so I begin again from the first one."
    )
    assert "Secret" not in thought(click("link", "More"), hidden, visible=("More",))
    assert thought(click("link", "Date"), action="scroll [down]") == "The link 'Date' isn't in sight, so I scroll."


def test_thoughts_about_other_steps() -> None:
    assert thought(go("http://wiki.example/")) == "What is to be done next is to be done at http://wiki.example/."
    assert thought(back()) == "I have seen here what I wanted to see, so I go back to where I came from."
    assert thought(tab(2)) == "What I look for may be in tab 2, so I go there."
    assert thought(press("Enter")) == "It takes the keys Enter here."


def test_thoughts_about_the_answer() -> None:
    assert thought(stop()) == "All that the objective asks for is done, so I stop."
    assert thought(stop("N/A"), visible=("N/A values",)) == (
        "From all that I have seen, this can't be done, so the answer is 'N/A'."
    )
    assert thought(stop("5"), visible=("5", "15 reviews")) == "From all that I have seen, the answer is '5'."
    assert thought(stop("5"), visible=("5", "5 reviews")) == "The page says '5 reviews', so the answer is '5'."
    assert situation().thought() == (
        "I have no plan for this objective, so I stop with the reference answer, if there is one."
    )


def test_plan_names_only_visible_elements() -> None:
    steps = (
        fill("searchbox", "Find", "Blue Kettle"),
        click("link", "Secret"),
        choose("Sort by", "Newest"),
        go("http://wiki.example/"),
        back(),
        press("Enter"),
        tab(1),
        stop("12 May"),
    )
    assert situation(*steps, visible=("Find",)).outline().splitlines() == [
        f"The objective: {OBJECTIVE}",
        "1. Type 'Blue Kettle' into the searchbox 'Find'.",
        "2. Click a link.",
        "3. Choose what fits in a combobox.",
        "4. Go to http://wiki.example/.",
        "5. Go back.",
        "6. Press Enter.",
        "7. Go to tab 1.",
        "8. Stop with the answer that I find.",
    ]
    assert situation().outline() == f"The objective: {OBJECTIVE}\nI have no plan for it."
