"""What constructed snapshots of pages need: a layout without DOM nodes."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.page.geometry import Layout

_DOCUMENT = {
    "frameId": 0,
    "nodes": {
        "backendNodeId": [],
        "parentIndex": [],
        "nodeType": [],
        "isClickable": {"index": []},
        "contentDocumentIndex": {"index": [], "value": []},
    },
    "layout": {"nodeIndex": [], "bounds": [[0, 0, 1280, 720]], "styles": []},
}
LAYOUT = Layout({"strings": ["frame"], "documents": [_DOCUMENT]}, {})
"""The layout of an empty window of 1280 by 720 pixels."""
