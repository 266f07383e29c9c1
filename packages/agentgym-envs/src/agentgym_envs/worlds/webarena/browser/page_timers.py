"""Track the short timers of a page, such as those of debounced suggestions and hover menus, without its notice.

`TRACK_SCRIPT` runs in each document before the page's own scripts, and `page_idle` asks it for the timers that are
pending through an event whose name no page knows.
"""

from __future__ import annotations

import secrets

QUESTION = secrets.token_hex(16)
"""The type of the event that asks a document: its `detail` is the time, in milliseconds since the epoch, from which on
timers count."""
ANSWER = secrets.token_hex(16)
"""The type of the event that answers: its `detail` is the time at which the last pending timer is due, or 0."""

# Pollers set their timers in the callbacks of timers, so nested timers don't count. One level of nesting does, as in
# a menu that opens after a delay and fills in a second one. The level also holds for what a callback's promises
# continue, which has run when the message that resets it arrives. The page may replace any property of its built-in
# objects, so none is looked up after the start.
TRACK_SCRIPT = (
    (
        """(() => {
  const MOST_MS = 1000, NESTED = 2;
  const {apply} = Reflect, {now} = Date, {create} = Object;
  const {get: lookup, set: store} = WeakMap.prototype, {dispatchEvent} = EventTarget.prototype;
  const {port1, port2} = new MessageChannel(), {postMessage} = MessagePort.prototype, Answer = CustomEvent;
  const detail = Object.getOwnPropertyDescriptor(CustomEvent.prototype, 'detail').get;
  const start = setTimeout, originals = new WeakMap(), pending = create(null);
  let level = 0;
  port1.onmessage = () => { level = 0; };

  const replace = (owner, name, trap) => {
    const original = owner[name];
    owner[name] = new Proxy(original, {__proto__: null, apply: trap});
    apply(store, originals, [owner[name], original]);
  };
  const within = (inner, callback) => function () {
    level = inner;
    apply(postMessage, port2, [0]);
    return apply(callback, this, arguments);
  };

  replace(window, 'setTimeout', (original, self, args) => {
    const callback = args[0], outer = level;
    const delay = typeof args[1] === 'number' || typeof args[1] === 'string' ? +args[1] || 0 : 0;
    let id;
    if (typeof callback === 'function') {
      const inner = within(outer + 1, callback);
      args[0] = function () { delete pending[id]; return apply(inner, this, arguments); };
    }
    id = apply(original, self, args);
    if (delay < MOST_MS && outer < NESTED) {
      pending[id] = {set: now(), due: now() + (delay > 0 ? delay : 0)};
      if (typeof callback !== 'function') start(() => { delete pending[id]; }, delay);
    }
    return id;
  });
  for (const [name, nesting] of [['setInterval', () => NESTED], ['requestAnimationFrame', () => level + 1]])
    replace(window, name, (original, self, args) => {
      if (typeof args[0] === 'function') args[0] = within(nesting(), args[0]);
      return apply(original, self, args);
    });
  for (const name of ['clearTimeout', 'clearInterval'])
    replace(window, name, (original, self, args) => {
      if (typeof args[0] === 'number') delete pending[args[0]];
      return apply(original, self, args);
    });
  replace(Function.prototype, 'toString', (original, self, args) => {
    const native = typeof self === 'function' ? apply(lookup, originals, [self]) : undefined;
    return apply(original, native || self, args);
  });

  document.addEventListener('QUESTION', event => {
    const since = apply(detail, event, []);
    let last = 0;
    for (const id in pending) if (pending[id].set >= since && pending[id].due > last) last = pending[id].due;
    apply(dispatchEvent, document, [new Answer('ANSWER', {__proto__: null, detail: last})]);
  });
})()"""
    )
    .replace("QUESTION", QUESTION)
    .replace("ANSWER", ANSWER)
)
"""JavaScript that tracks the timers of less than a second that no timer's callback has set."""
