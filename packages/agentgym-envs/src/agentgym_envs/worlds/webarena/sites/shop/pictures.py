"""Drawings of products as inline SVG: a few shapes per type, in the product's color."""

from __future__ import annotations

COLOURS = {
    "black": "#2b2d30",
    "white": "#f1efe9",
    "grey": "#8f969c",
    "navy": "#26395c",
    "blue": "#3f74b5",
    "sage": "#8ea68a",
    "green": "#3f7d54",
    "olive": "#6d7040",
    "rust": "#b3562e",
    "red": "#b8323a",
    "ochre": "#cf9a38",
    "yellow": "#e6c84d",
    "cream": "#e9dcc0",
    "sand": "#cfb892",
    "brown": "#7a5338",
    "rose": "#d59aa2",
    "plum": "#6b3e5e",
    "teal": "#2f7f83",
}
"""Paint of each product color."""
_INK = 'stroke="#3a4046" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
_SHAPES = {
    "pan": '<ellipse cx="42" cy="58" rx="32" ry="14"/><path d="M73 55l22-9 2 5-22 11z"/>',
    "knife": '<path d="M12 62l50-26q6 12-8 20z" fill="#dfe4e8"/><path d="M60 40l26-14 5 8-27 15z"/>',
    "mug": '<path d="M25 28h40v42q0 8-8 8H33q-8 0-8-8z"/><path d="M65 38q18-2 17 13t-17 15" fill="none"/>',
    "plate": '<ellipse cx="50" cy="55" rx="42" ry="22"/><ellipse cx="50" cy="54" rx="26" ry="12" fill="#ffffff55"/>',
    "kettle": '<path d="M30 78q-8-30 8-42h24q16 12 8 42z"/><path d="M70 50l18-10M38 36q12-26 24 0" fill="none"/>',
    "jar": '<rect x="28" y="32" width="44" height="52" rx="8"/><rect x="32" y="20" width="36" height="12" rx="3" '
    'fill="#c8a878"/>',
    "bed": '<path d="M10 80V34h8v24h64V50h8v30h-8v-8H18v8z"/><rect x="22" y="46" width="24" height="12" fill="#fff"/>',
    "towel": '<path d="M24 20h52v60H24z"/><path d="M24 66h52M24 71h52M16 20h68" fill="none"/>',
    "lamp": '<path d="M34 20h32l12 30H22z"/><path d="M50 50v30M34 82h32" fill="none"/>',
    "rug": '<path d="M14 34h72v36H14z"/><path d="M24 42h52v20H24zM8 36l6 2M8 48h6M8 60h6M86 38h6M86 50h6M86 62h6" '
    'fill="none"/>',
    "candle": '<rect x="34" y="40" width="32" height="44" rx="4"/><path d="M50 40V32" fill="none"/>'
    '<path d="M50 14q9 12 0 18-9-6 0-18z" fill="#f0b23e"/>',
    "clock": '<circle cx="50" cy="50" r="34"/><circle cx="50" cy="50" r="26" fill="#fff"/>'
    '<path d="M50 32v18l12 8" fill="none"/>',
    "chair": '<path d="M30 14h34v34H30z"/><path d="M26 50h44v8H26zM30 58v28M66 58v28"/>',
    "table": '<path d="M8 38h84v8H8zM18 46v38M82 46v38"/>',
    "shelf": '<path d="M24 14h52v72H24z"/><path d="M24 38h52M24 62h52" fill="none"/>',
    "sofa": '<path d="M18 44q0-18 14-18h36q14 0 14 18v8H18z"/><path d="M8 48h14v14h56V48h14v28H8zM16 76v8M84 76v8"/>',
    "box": '<path d="M16 40h68v42H16z"/><path d="M12 28h76v12H12z"/><path d="M42 52h16" fill="none"/>',
    "headphones": '<path d="M18 60Q18 18 50 18t32 42" fill="none"/><rect x="12" y="52" width="16" height="28" rx="6"/>'
    '<rect x="72" y="52" width="16" height="28" rx="6"/>',
    "speaker": '<rect x="28" y="12" width="44" height="76" rx="6"/><circle cx="50" cy="60" r="16" fill="#fff6"/>'
    '<circle cx="50" cy="30" r="8" fill="#fff6"/>',
    "keyboard": '<rect x="8" y="36" width="84" height="32" rx="5"/>'
    '<path d="M16 46h68M16 54h68M30 62h40" fill="none" stroke="#fff"/>',
    "cable": '<path d="M14 70q20 20 36-18t36-20" fill="none"/><rect x="6" y="62" width="14" height="14" rx="3"/>'
    '<rect x="80" y="24" width="14" height="14" rx="3"/>',
    "camera": '<rect x="12" y="32" width="76" height="48" rx="7"/><path d="M36 32l6-10h16l6 10z"/>'
    '<circle cx="50" cy="56" r="16" fill="#dfe4e8"/>',
    "watch": '<path d="M38 8h24v84H38z"/><circle cx="50" cy="50" r="24" fill="#fff"/><path d="M50 36v14l9 5" '
    'fill="none"/>',
    "blender": '<path d="M34 14h32l-5 44H39z" fill="#e3edf3"/><path d="M34 58h32l5 28H29z"/>',
    "vacuum": '<circle cx="30" cy="68" r="18"/><path d="M40 54l24-38 20 64h-8" fill="none"/>',
    "fan": '<circle cx="50" cy="42" r="30" fill="#fff"/><path d="M50 42q-24-20 0-28 10 14 0 28 24 14 8 26-14-6-8-26z"/>'
    '<path d="M50 72v14M34 86h32" fill="none"/>',
    "iron": '<path d="M12 70q6-30 40-30h30l6 30z"/><path d="M38 40q4-16 36-14l6 14" fill="none"/>',
    "dryer": '<circle cx="38" cy="38" r="24"/><path d="M58 26l30-6v32l-30-4zM34 60l8 28h14l-6-32z"/>',
    "shirt": '<path d="M34 16l16 8 16-8 24 16-10 14-10-6v46H30V40l-10 6-10-14z"/>',
    "trousers": '<path d="M30 12h40l6 76H58l-8-50-8 50H24z"/>',
    "jumper": '<path d="M34 16q16 10 32 0l20 14v48H74V46v36H26V46v32H14V30z"/>',
    "jacket": '<path d="M34 14h32l20 14v46H74V46v40H26V46v28H14V28z"/><path d="M50 14v72" fill="none"/>',
    "sock": '<path d="M36 10h24v40l22 20q4 14-12 16-30-6-34-24z"/><path d="M36 20h24" fill="none"/>',
    "hat": '<path d="M22 60q0-40 28-40t28 40z"/><rect x="16" y="58" width="68" height="14" rx="6"/>',
    "shoe": '<path d="M10 40q16 6 22-4l26 22 30 8v10H10z"/><path d="M10 70h78" fill="none" stroke="#fff"/>',
    "boot": '<path d="M30 12h28v44l30 14v14H30z"/><path d="M30 78h58" fill="none"/>',
    "slipper": '<path d="M8 66q4-24 40-20 40 4 44 20 0 8-8 8H16q-8 0-8-8z"/><path d="M30 50q16 4 20 24" fill="none"/>',
    "backpack": '<path d="M26 36q0-20 24-20t24 20v50H26z"/><path d="M34 56h32v22H34zM42 16q8-12 16 0" fill="none"/>',
    "suitcase": '<rect x="24" y="26" width="52" height="56" rx="6"/><path d="M40 26V10h20v16M36 34v40M64 34v40" '
    'fill="none"/>',
    "wallet": '<rect x="14" y="30" width="72" height="46" rx="6"/><path d="M60 46h26v14H60z" fill="#fff5"/>',
    "bottle": '<path d="M40 12h20v14l8 10v50H32V36l8-10z"/><rect x="36" y="50" width="28" height="20" fill="#fff9"/>',
    "soap": '<rect x="16" y="40" width="68" height="36" rx="14"/><path d="M34 58h32" fill="none" stroke="#fff"/>',
    "perfume": '<rect x="28" y="38" width="44" height="46" rx="8"/><rect x="42" y="18" width="16" height="20"/>',
    "razor": '<rect x="20" y="14" width="60" height="14" rx="4"/><rect x="45" y="28" width="10" height="60" rx="4"/>',
    "brush": '<path d="M10 66l54-36 6 8-54 36z"/><path d="M62 22l20-12 10 16-18 12z" fill="#f4f6f8"/>',
    "tent": '<path d="M50 16L92 82H8z"/><path d="M50 30L62 82H40z" fill="#0003"/>',
    "sleepingbag": '<rect x="28" y="10" width="44" height="80" rx="20"/><path d="M50 34v50" fill="none"/>',
    "torch": '<path d="M10 34h16l12 8h50v16H38l-12 8H10z"/><path d="M2 34v32" fill="none" stroke="#f0b23e"/>',
    "flask": '<rect x="34" y="28" width="32" height="60" rx="8"/><rect x="38" y="10" width="24" height="18" rx="4" '
    'fill="#8f969c"/>',
    "mat": '<path d="M30 24h56v46H30z"/><circle cx="26" cy="46" r="20"/><circle cx="26" cy="46" r="8" fill="#fff6"/>',
    "bicycle": '<circle cx="26" cy="64" r="18" fill="none"/><circle cx="74" cy="64" r="18" fill="none"/>'
    '<path d="M26 64l16-30h26l6 30M42 34l14 30H26" fill="none"/><path d="M34 28h16v6H34z"/>',
    "game": '<rect x="14" y="20" width="60" height="60" rx="4"/><path d="M34 20v60M54 20v60M14 40h60M14 60h60" '
    'fill="none"/><circle cx="80" cy="72" r="10" fill="#fff"/>',
    "puzzle": '<path d="M18 30h24q-4-16 8-16t8 16h24v22q-16-4-16 8t16 8v18H18z"/>',
    "bear": '<circle cx="32" cy="24" r="12"/><circle cx="68" cy="24" r="12"/><circle cx="50" cy="42" r="26"/>'
    '<path d="M42 38h1M57 38h1M44 52q6 6 12 0" fill="none"/><path d="M32 66h36l6 24H26z"/>',
    "blocks": '<path d="M12 56h34v30H12zM54 56h34v30H54zM32 22h34v30H32z"/>',
    "palette": '<path d="M50 16q40 0 40 32 0 14-18 12-14 0-10 14 0 12-16 10-36-6-36-34 0-32 40-34z"/>'
    '<circle cx="34" cy="40" r="6" fill="#b8323a"/><circle cx="56" cy="32" r="6" fill="#e6c84d"/>'
    '<circle cx="32" cy="60" r="6" fill="#3f74b5"/>',
    "notebook": '<rect x="24" y="12" width="54" height="76" rx="4"/><path d="M34 12v76" fill="none"/>'
    '<rect x="44" y="26" width="26" height="12" fill="#fff9"/>',
}


def picture(kind: str, colour: str, label: str) -> str:
    """Return an `<svg>` element of `kind` in a color of `COLOURS`, with the accessible name `label`."""
    paint = COLOURS.get(colour, "#8f969c")
    shapes = f'<g fill="{paint}" {_INK}>{_SHAPES[kind]}</g>'
    return f'<svg viewBox="0 0 100 100" role="img" aria-label="{label}">{shapes}</svg>'
