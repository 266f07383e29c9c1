// The menu of versions. `versions.js` in the folder of all versions sets `siteVersions`; alone, a version has no menu.
document.addEventListener("DOMContentLoaded", () => {
    const menu = document.querySelector("#versions");
    if (!menu || !window.siteVersions) return;
    for (const version of window.siteVersions) {
        menu.add(new Option(version, version, false, version === menu.dataset.version));
    }
    menu.hidden = false;
    menu.addEventListener("change", () => {
        const start = `${menu.dataset.root}../${menu.value}/`;
        // A page that the other version doesn't have leads to its first page. Files can't be asked for.
        if (location.protocol === "file:") location.href = `${start}index.html`;
        else {
            fetch(start + menu.dataset.page, { method: "HEAD" }).then(
                (found) => (location.href = start + (found.ok ? menu.dataset.page : "index.html")),
            );
        }
    });
});
