// The frame of the page: login, navigation, the state of the peer.

import { html, render, setToken, useEffect, useState, Badge, Failed, Text, shown, short, where } from './lib.js';
import { follow, useLive } from './live.js';
import { MapView } from './map.js';
import { SearchView } from './search.js';
import { ServicesView } from './services.js';
import { GroupView, KeysView, LocksView } from './coordination.js';
import { FiguresView, NamesView, PeersView, TimelineView } from './network.js';

const views = {
  map: ['Map', MapView], search: ['Search', SearchView], services: ['Services', ServicesView], locks: ['Locks', LocksView], group: ['Group', GroupView],
  peers: ['Peers', PeersView], timeline: ['Timeline', TimelineView], keys: ['Keys', KeysView], names: ['DNS', NamesView], figures: ['Figures', FiguresView],
};

// A link may carry a token in its fragment, which no server sees. It leaves the address bar at once.
function arrive() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  setToken(decodeURIComponent(given[1]));
  history.replaceState(null, '', `${location.pathname}#/map`);
}

function Login() {
  const { problem } = useLive();
  const submit = e => {
    e.preventDefault();
    setToken(new FormData(e.target).get('token'));
    e.target.reset();
    follow();
  };
  return html`<main class="login"><h1>blackholed</h1><p>This peer wants to know who asks.</p><${Failed} error=${problem && { message: problem }} />
    <form onSubmit=${submit}><label for="token">token<input id="token" name="token" type="password" autocomplete="off" required /></label><button class="primary">Enter</button></form>
    <p class="quiet">One of the peer's tokens (settings auth). It stays in the memory of this tab.</p></main>`;
}

const links = { live: 'live', connecting: 'connecting…', lost: 'no contact: trying again' };

function App() {
  const live = useLive();
  const [, turn] = useState(0);
  useEffect(() => {
    const changed = () => { arriveAgain(); turn(n => n + 1); };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  const name = views[where().view] ? where().view : 'map';
  useEffect(() => { document.title = `${views[name][0]} – blackholed`; }, [name]);
  if (live.link === 'refused') return html`<${Login} />`;
  const View = views[name][1];
  const h = live.health;
  return html`<a class="skip" href="#content" onClick=${e => { e.preventDefault(); document.getElementById('content').focus(); }}>Skip to the content</a>
    <header class="top"><b class="brand">blackholed</b>
      <nav aria-label="Views"><ul>${Object.entries(views).map(([k, [title]]) => html`<li><a href=${`#/${k}`} aria-current=${k === name ? 'page' : undefined}>${title}</a></li>`)}</ul></nav>
      <span class="state" role="status"><i class=${`lamp ${live.link}`}></i>${links[live.link]} ${live.link === 'live' && h && html`<${Badge}>${h.status}<//>`}</span></header>
    ${live.link === 'live' && h && h.reason && html`<p class="banner">${shown(h.reason, 300)}</p>`}
    <main id="content" tabindex="-1"><${View} key=${name} /></main>`;
}

function arriveAgain() {
  if (!location.hash.startsWith('#token=')) return;
  arrive();
  follow();
}

arrive();
render(html`<${App} />`, document.getElementById('app'));
follow();
