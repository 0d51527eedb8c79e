// The first view: the state in one sentence, and where to look.

import { html, ago, cli, go, may, Command, Elsewhere, shown, span, useCall, useMemo, Heading, NotLoaded, Text, Whole, short, textOf } from './lib.js';
import { nameOfPeer, peerOf, peopled, staleFor, useLive } from './live.js';
import { Legend, World } from './map.js';
import { Bar, grouped } from './services.js';
import { Topology, useLocks } from './topology.js';
import { counted } from './words.js';

const named = m => m.name || nameOfPeer(m.peer_id) || short(m.peer_id);
const ownerName = id => { const peer = peerOf(id); return peer ? nameOfPeer(peer) || short(peer) : id.replace(/^@/, ''); };
const wellOf = services => services.filter(s => s.counts.UP === s.total).length;

// Conditions that end something; the others limit it.
const ending = ['no_quorum', 'member_stopped', 'states_differ', 'identity_in_use', 'isolated'];

// causes lists what is wrong, the worst first, as { tone, text, remedy, since, own }; own has a view that shows it. A lost quorum is told once.
export function causes({ group: g, health: h, status, peers }, services) {
  const list = [], add = (tone, text, since, own, remedy) => list.push({ tone, text: peopled(text), remedy: remedy && peopled(remedy), since: since && new Date(since), own });
  const conditions = (h?.conditions || []).filter(c => c.state !== 'over'), lost = conditions.find(c => c.name === 'no_quorum');
  const silent = g?.missing ? [] : (g?.voters || []).filter(m => !m.active);
  if (g?.missing && !lost?.what) add('bad', g.missing, lost?.since);
  if (silent.length > 0) add(g.failures_survived ? 'wait' : 'bad', `${silent.map(named).join(', ')}: no answer from ${silent.length === 1 ? 'this voter' : 'these voters'}. ${g.failures_survived ? `${g.failures_survived} more may fail.` : 'One more failure stops locks.'}`, Date.now() - Math.max(...silent.map(m => +m.silent_ms || 0)));
  for (const c of conditions) {
    if (c === lost && g?.missing && !c.what) continue;
    add(ending.includes(c.name) && c.state !== 'coming' ? 'bad' : 'wait', c.what ? [c.what, c.effect].filter(Boolean).join(': ') : c.message, c.since, false, c.remedy);
  }
  if (h?.reason && (h.status === 'unhealthy' || !conditions.length)) add(h.status === 'unhealthy' ? 'bad' : 'wait', h.details ? `${h.reason}: ${h.details}` : h.reason);
  if (status?.records_own && peers?.size === 0) add('wait', `Nobody else finds the ${counted(status.records_own, 'offer')} of this peer: no other peer is connected.`, null, true);
  if (!staleFor()) { // of an old copy nothing is known to be down now
    for (const s of services) if (!s.counts.UP && s.counts.OUT_OF_SERVICE !== s.total) add('bad', `No instance of ${s.name} is UP.`, null, true);
    for (const s of services) if (s.counts.UP && s.counts.UP + (s.counts.OUT_OF_SERVICE || 0) < s.total) add('wait', `${s.name}: ${s.counts.UP} of ${s.total} instances are UP.`, null, true);
  }
  return list.filter(({ text }, n, all) => all.findIndex(c => c.text === text) === n).sort((a, b) => (a.tone === b.tone ? 0 : a.tone === 'bad' ? -1 : 1));
}

// Cause tells one cause, how long it lasts already, and what to do.
export const Cause = ({ of: c }) => html`${shown(c.text, 400)}${c.since && html` <span class="since" title=${c.since.toLocaleString()}>for ${span(Math.max(0, Date.now() - c.since))}</span>`}${c.remedy && html`. <span class="since">What helps: ${shown(c.remedy, 300)}</span>`}`;

const mostCauses = 4;

// Start says what to do at a peer that has nothing yet: one command for each thing that is missing.
function Start({ alone, services, offers }) {
  const steps = [
    alone && ['Join', 'A second machine makes a network. Run this here: it prints the line that starts the other one.', cli('invite'), 'admin'],
    !services.length && ['Register', 'An application gets a name that every peer finds.', cli('instance register web --host 127.0.0.1 --port 8080'), 'service'],
    !offers && ['Sell', 'Space, a GPU, a line: others find it by place and price. This asks what it does not know.', cli('sell storage --price 0.02 --serve 127.0.0.1:9000'), 'admin'],
  ].filter(step => step && may(step[3]));
  if (!steps.length) return null;
  return html`<section class="start" aria-label="First steps"><h3>What to do first</h3><div class="tiles">${steps.map(([title, text, command], n) => html`<section class="tile" key=${title}><h4><b class="step">${n + 1}</b> ${title}</h4><p class="quiet">${text}</p><${Command}>${command}<//></section>`)}</div></section>`;
}

const Tile = ({ title, view, children }) => html`<section class="tile"><h3><a href=${`#/${view}`}>${title}</a></h3>${children}</section>`;

function LocksTile({ locks, asOf }) {
  if (!locks) return html`<p class="quiet">not loaded</p>`;
  return html`<p class="hero">${locks.length} <small>held${asOf}</small></p><ul class="plain">${locks.slice(0, 4).map(l => html`<li key=${l.name}><a href=${`#/locks?${new URLSearchParams({ lock: l.name })}`}><${Text} most=${28}>${l.name}<//></a>
    <span class="quiet">${l.holding[0] && html`<${Text} most=${24}>${(l.holding[0].metadata && textOf(l.holding[0].metadata)) || l.holding[0].application || ownerName(l.holding[0].holder_id)}<//>, ${span(+l.holding[0].age_ms)}`}${l.waiting.length ? `, ${l.waiting.length} wait` : ''}</span></li>`)}</ul>`;
}

// News lists what happened last.
const News = ({ events }) => html`<section class="tile news"><h3><a href="#/timeline">Recent events</a></h3>${events.length === 0 ? html`<p class="quiet">Nothing has changed since this page was opened.</p>` : html`<ul class="plain recent">${events.slice(0, 14).map(e => html`<li><span class="quiet">${ago(e.at)}</span> <${Text} most=${140}>${`${e.topic === 'history' ? '' : `${e.topic} `}${e.kind}: ${peopled(e.text)}`}<//></li>`)}</ul>`}</section>`;

export function OverviewView() {
  const live = useLive();
  const { group: g, peers, offers, answer, loaded, planes } = live;
  const locks = useLocks();
  const usable = useCall('/v1/discovery/query?types=compute,storage,bandwidth,cdn&limit=1&exact_total=true', [offers.size], 15000).value?.total, known = usable === undefined || usable > offers.size; // a larger total counts what this page has not loaded
  const services = grouped(live.services), well = wellOf(services), old = staleFor();
  const list = useMemo(() => [...offers.values()], [live.version]);
  const title = html`<${Heading} title="Overview">What this peer sees of its network.<//>`;
  if (!live.health || !peers) return html`${title}<${NotLoaded} />`;
  const wrong = causes(live, services), voters = g?.voters || [], asOf = old ? `, as of ${span(old)} ago` : '';
  const facts = [
    counted(peers.size + 1, 'peer'),
    g && voters.length > 0 && !g.missing && `${counted(voters.length, 'voter')}, ${g.failures_survived ? `${g.failures_survived} may fail` : 'none may fail'}`,
    loaded.has('services') && (services.length === 0 ? 'no services' : `${well === services.length ? `${counted(well, 'service')}, all UP` : `${well} of ${counted(services.length, 'service')} all UP`}${asOf}`),
    loaded.has('offers') && `${counted(offers.size, 'offer')}${known || offers.size === 0 ? '' : `, ${usable} usable`}`,
    locks && !g?.missing && `${counted(locks.length, 'lock')} held`,
  ].filter(Boolean);
  const worst = services.filter(s => s.counts.UP !== s.total).concat(services.filter(s => s.counts.UP === s.total));
  const empty = loaded.has('offers') && loaded.has('services') && offers.size === 0 && services.length === 0;
  return html`${title}<section class=${`verdict ${wrong[0]?.tone ?? 'good'}`} aria-label="State"><p><b>${wrong.length ? html`<${Cause} of=${wrong[0]} />` : 'All well.'}</b> <span>${facts.join(' · ')}</span></p>
      ${wrong.length > 1 && html`<ul>${wrong.slice(1, mostCauses).map(c => html`<li key=${c.text}><${Cause} of=${c} /></li>`)}${wrong.length > mostCauses && html`<li>and ${wrong.length - mostCauses} more</li>`}</ul>`}</section>
    <${Topology} />
    ${loaded.has('offers') && loaded.has('services') && (empty || peers.size === 0) && html`<${Start} alone=${peers.size === 0} services=${services} offers=${offers.size} />`}
    ${empty ? html`<${News} events=${live.events} />` : html`<div class="tiles">
      <${Tile} title="Apps" view="services">${!loaded.has('services') ? html`<p class="quiet">not loaded</p>` : html`<p class="hero">${well} <small>of ${counted(services.length, 'service')} all UP${asOf}</small></p>
        <ul class=${`plain bars ${old ? 'stale' : ''}`}>${worst.slice(0, 4).map(s => html`<li key=${s.name}><a href=${`#/services?service=${encodeURIComponent(s.name)}`}><${Text} most=${20}>${s.name}<//></a><${Bar} ...${s} /></li>`)}</ul>`}<//>
      <${Tile} title="Offers" view="map">${!loaded.has('offers') ? html`<p class="quiet">not loaded</p>` : html`<p class="hero">${known || !offers.size ? offers.size : usable} <small>${known || !offers.size ? 'known' : `of ${offers.size} usable`}</small></p><${Legend} offers=${list} /><${Whole} of=${answer} />`}<//>
      ${planes.includes('coordination') && html`<${Tile} title="Locks" view="locks"><${LocksTile} locks=${locks} asOf=${asOf} /><//>`}
    </div>
    ${offers.size === 0 ? html`<${News} events=${live.events} />` : html`<div class="beside"><${World} offers=${list} onPick=${() => go('map')} label=${`World map with ${list.length} offers; the view Map lists them`} /><${News} events=${live.events} /></div>`}`}
    <${Elsewhere} commands=${[cli('status'), `curl ${location.origin}/v1/status`]} />`;
}
