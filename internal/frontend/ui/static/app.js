// The frame of the page: login, navigation, the state of the peer.

import { html, reader, redeem, render, setToken, signedIn, signOut, useEffect, useState, Badge, Command, Failed, Text, cli, short, shown, span, where } from './lib.js';
import { follow, useLive } from './live.js';
import { Cause, causes, OverviewView } from './overview.js';
import { MapView } from './map.js';
import { SearchView } from './search.js';
import { GrantsView } from './trade.js';
import { grouped, ServicesView } from './services.js';
import { GroupView, KeysView, LocksView, RequirementsView } from './coordination.js';
import { FiguresView, NamesView, PeersView, TimelineView } from './network.js';
import { Palette } from './palette.js';

const views = {
  overview: ['Overview', OverviewView],
  map: ['Map', MapView], search: ['Search', SearchView], grants: ['Grants', GrantsView], services: ['Services', ServicesView], locks: ['Locks', LocksView], requirements: ['Requirements', RequirementsView], group: ['Group', GroupView],
  peers: ['Peers', PeersView], timeline: ['Timeline', TimelineView], keys: ['Keys', KeysView], names: ['DNS', NamesView], figures: ['Figures', FiguresView],
};

// The views of a group, the first one where its link leads.
const groups = [['Overview', 'overview'], ['Market', 'map', 'search', 'grants'], ['Apps', 'services', 'names', 'requirements'], ['Coordination', 'locks', 'keys', 'group'], ['Network', 'peers', 'timeline', 'figures']];

// Mark is a black disc with its ring of light, as in icon.svg.
const Mark = () => html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><circle cx="16" cy="16" r="11" fill="#05070b" /><circle cx="16" cy="16" r="12.5" fill="none" stroke="#f2a33c" stroke-width="2.4" /><path d="M5 20.5A12.5 12.5 0 0 0 27 20.5" fill="none" stroke="#ffd9a0" stroke-width="2.4" stroke-linecap="round" /></svg>`;

// Tabs are links to views of the same rank.
const Tabs = ({ label, current, list }) => html`<nav aria-label=${label}><ul>${list.map(([title, view]) => html`<li key=${view}><a href=${`#/${view}`} aria-current=${view === current ? 'page' : undefined}>${title}</a></li>`)}</ul></nav>`;

// A link may carry a code in its fragment, which no server sees. The code leaves the address bar at once and works once.
function arrive() {
  const given = /^#code=(.+)$/.exec(location.hash);
  if (!given) return null;
  history.replaceState(null, '', `${location.pathname}#/overview`);
  return redeem(decodeURIComponent(given[1]));
}

// enter follows the peer as whoever the link says. A spent link leads to the login.
async function enter() {
  try {
    await arrive();
    login.asked = false;
  } catch (error) {
    Object.assign(login, { asked: true, problem: error.message });
  }
  follow();
}

const login = { asked: false, problem: '' };

function Login({ back }) {
  const { link, problem } = useLive();
  const why = login.problem || (link === 'refused' && problem);
  const submit = e => {
    e.preventDefault();
    setToken(new FormData(e.target).get('token'));
    e.target.reset();
    Object.assign(login, { asked: false, problem: '' });
    follow();
  };
  return html`<main class="login"><h1>blackholed</h1><p>This peer wants to know who asks.</p><${Failed} error=${why && { message: why }} />
    <p>On the peer's host, this command prints a link that signs you in:</p><${Command}>${cli('ui')}<//>
    <form onSubmit=${submit}><label for="token">or a token<input id="token" name="token" type="password" autocomplete="off" required /></label><button class="primary">Enter</button></form>
    <p class="quiet">One of the peer's tokens (settings auth). It stays in the memory of this tab.</p>
    ${link === 'live' && html`<button type="button" onClick=${back}>Go on as ${reader.name || 'a guest'}</button>`}</main>`;
}

// Who names the reader, and lets them change.
function Who({ turn }) {
  if (reader.open) return null;
  const leave = async () => { await signOut(); location.reload(); }; // nothing of the reader stays
  const ask = () => { Object.assign(login, { asked: true, problem: '' }); turn(); };
  return html`<span class="who">${reader.name && html`<${Text} most=${20}>${reader.name}<//> `}<span class="quiet">${reader.role}</span></span>
    ${signedIn() ? html`<button type="button" onClick=${leave}>Sign out</button>` : html`<button type="button" onClick=${ask}>Sign in</button>`}`;
}

const links = { live: 'live', connecting: 'connecting…', lost: 'no contact' };

// Lost lies over the page while the peer is silent, and counts the age of what is below.
function Lost() {
  const [, turn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => turn(n => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const { heard } = useLive();
  return html`<p class="banner lost" role="alert">${heard ? html`No contact with this peer for <span aria-live="off">${span(Date.now() - heard)}</span>: everything below is old.` : 'No contact with this peer: nothing is loaded.'} The page is trying again.</p>`;
}

// opens says whether a key opens the palette: Control and K anywhere, a slash where no text is typed.
const opens = e => (e.key === '/' && !e.ctrlKey && !e.metaKey && !e.altKey && !e.target.closest('input, select, textarea')) || (e.key.toLowerCase() === 'k' && (e.ctrlKey || e.metaKey));

function App() {
  const live = useLive();
  const [, turn] = useState(0);
  const [finding, find] = useState(false);
  useEffect(() => {
    const press = e => {
      if (!opens(e) || live.link === 'refused' || login.asked) return;
      e.preventDefault();
      find(true);
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
  useEffect(() => {
    const changed = () => {
      if (location.hash.startsWith('#code=')) enter();
      find(false);
      turn(n => n + 1);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  const name = views[where().view] ? where().view : 'overview';
  const peer = live.status && shown(live.status.name || short(live.status.peer_id), 24);
  useEffect(() => { document.title = [views[name][0], peer, 'blackholed'].filter(Boolean).join(' – '); }, [name, peer]);
  if (live.link === 'refused' || login.asked) return html`<${Login} back=${() => { login.asked = false; turn(n => n + 1); }} />`;
  const View = views[name][1];
  const group = groups.find(g => g.slice(1).includes(name)), wrong = live.health ? causes(live, grouped(live.services)) : [], worst = wrong[0], cause = wrong.find(c => !c.own);
  return html`<a class="skip" href="#content" onClick=${e => { e.preventDefault(); document.getElementById('content').focus(); }}>Skip to the content</a>
    <header class="top"><b class="brand"><${Mark} />blackholed</b>${peer && html`<span class="peer"><bdi>${peer}</bdi> <span class="quiet">network <${Text} most=${24}>${live.status.network}<//></span></span>`}
      <${Tabs} label="Groups of views" current=${group[1]} list=${groups} />
      <button type="button" class="find" aria-keyshortcuts="/ Control+K" onClick=${() => find(true)}>Find <kbd>/</kbd></button><span class="state" role="status"><i class=${`lamp ${live.link}`}></i>${links[live.link]} ${live.link === 'live' && live.health && html`<${Badge} tone=${worst?.tone ?? 'good'}>${!worst ? 'all well' : worst.tone === 'bad' ? 'failing' : 'limited'}<//>`}</span>${live.link === 'live' && html`<${Who} turn=${() => turn(n => n + 1)} />`}</header>
    ${group.length > 2 && html`<div class="sub"><${Tabs} label=${`Views of ${group[0]}`} current=${name} list=${group.slice(1).map(k => [views[k][0], k])} /></div>`}
    ${live.link === 'live' && cause && name !== 'overview' && html`<p class=${`banner ${cause.tone}`}><${Cause} of=${cause} /></p>`}
    ${finding && html`<${Palette} views=${views} onClose=${() => find(false)} />`}
    ${live.link === 'lost' && html`<${Lost} />`}
    <main id="content" tabindex="-1" class=${live.link === 'lost' && 'old'}><${View} key=${name} /></main>`;
}

render(html`<${App} />`, document.getElementById('app'));
enter();
