"""Names shared by the data of all sites, so that the same people, towns and firms appear on each of them."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

FIRST_NAMES = tuple(
    "Ada Alma Amos Anouk Arlo Astrid Basil Bea Bruno Cara Cecil Clara Cleo Cyrus Dario Delia Dora Edgar Edith "
    "Elias Elin Emil Enid Esme Ezra Fenn Fern Finn Flora Frida Gideon Greta Hazel Hector Hugo Ida Ines Ingrid "
    "Iris Isaac Ivo Jasper Joan Jonah Juno Kai Keira Klara Lars Leander Lena Levi Lila Linus Lotte Lucian Mabel "
    "Magnus Maren Marta Milo Mina Nadia Nell Nico Nora Odin Olive Orla Oscar Otto Pearl Petra Phoebe Quentin Ravi "
    "Rhea Roland Rosa Rufus Sabine Saul Selma Silas Simone Sofia Sten Sylvie Tamsin Theo Thora Tilda Tobias Una "
    "Ursula Vera Viggo Wanda Wilma Xenia Yara Yusuf Zelda Zora".split()
)
LAST_NAMES = tuple(
    "Abernathy Albright Ashdown Barlow Beckett Birch Blackwood Bright Calloway Carver Chalmers Corbin Crane "
    "Dalton Draper Dunmore Eastman Ellery Fairbank Farrow Fletcher Foxley Garland Gough Grayson Hale Hartley "
    "Haskell Hawthorn Holloway Hurst Ingram Jessop Keating Kimball Lambert Langley Larkin Lockwood Marlow Mercer "
    "Merrick Morrow Nash Norwood Oakes Ormond Osgood Pemberton Pike Prescott Quill Radley Ramsey Redfern Rowe "
    "Sable Sawyer Sedgwick Shaw Sinclair Slade Sorrell Stroud Sutter Talbot Tennant Thatcher Thorne Tilley "
    "Underhill Vance Varley Wade Walden Warrick Wexford Whitlock Winslow Yardley Yates".split()
)
TOWNS = tuple(
    "Alderwick Amberford Ashcombe Barrowmere Beckhaven Birchholm Blackwater Brackenfold Bramley Bridgeness "
    "Caldmoor Carrowby Cawdry Cliffend Coldbrook Copperhill Cranmouth Dalegate Dunhollow Eastmarch Elmstead "
    "Fairhaven Fenwick Foxbury Glassford Goldcrest Greymouth Hallowby Harrowdene Hartsea Heathcote Highmoor "
    "Hollowell Ironbridge Kestrel Kingsferry Larchfield Linden Longmere Maplecross Marrowby Merehurst Millbrook "
    "Mossgate Netherby Northwold Oakhampton Oldcastle Otterbourne Pinemouth Quarrington Ravensworth Redmarsh "
    "Rosefell Saltash Sandwell Selby Silverdale Stonebeck Summerly Swanmere Thistleton Thornbury Tidewell "
    "Underwood Valebrook Wexcombe Whitcliff Willowby Windermoor Winterset Woodmere Wychford Yarrowdale".split()
)
"""The towns of the region, shown on the map and described in the encyclopedia."""
BRANDS = tuple(
    "Aldine Arbor Beacon Bluefin Bramble Cascade Cedar Cobalt Copperleaf Corvid Dapple Drift Ember Fable "
    "Fenwright Fjord Foxglove Granite Halcyon Harrier Hearth Heron Hollow Indigo Juniper Kestrel Kiln Lantern "
    "Linnet Lumen Marlin Meadow Meridian Mistral Morrow Nettle Northpeak Oakline Orchard Osprey Palisade Pebble "
    "Pinecrest Quarry Quill Ridgeway Rook Rowan Sable Saffron Sandpiper Solstice Sparrow Spruce Stonecrop Summit "
    "Swift Tallow Tamarack Thistle Timber Trellis Tundra Umber Vesper Wander Wicker Willow Wren Yarrow Zephyr".split()
)
"""Brands sold in the shop; the encyclopedia has an article on each brand's maker."""
