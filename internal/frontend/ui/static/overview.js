// The first view: the state in one sentence, and where to look.

import { html, ago, cli, go, Elsewhere, shown, span, useCall, useMemo, Heading, NotLoaded, Text, Whole, short, textOf } from './lib.js';
import { nameOfPeer, peerOf, peopled, useLive } from './live.js';
import { Legend, World } from './map.js';
import { Bar, grouped } from './services.js';

const counted = (n, one) => `${n} ${one}${n === 1 ? '' : 's'}`;
const named = m => m.name || nameOfPeer(m.peer_id) || short(m.peer_id);
const ownerName = id => { const peer = peerOf(id); return peer ? nameOfPeer(peer) || short(peer) : id.replace(/^@/, ''); };
const wellOf = services => services.filter(s => s.counts.UP === s.total).length;

// causes lists what is wrong, the worst first, as [tone, sentence].
function causes({ group: g, health: h, status, peers }, services) {
  const list = [], voters = g?.voters || [], silent = voters.filter(m => !m.active);
  const tone = h?.status === 'unhealthy' ? 'bad' : 'wait';
  if (g?.missing) list.push(['bad', g.missing]);
  else if (silent.length > 0) list.push([g.failures_survived ? 'wait' : 'bad', `${silent.map(named).join(', ')}: no answer from ${silent.length === 1 ? 'this voter' : 'these voters'}. ${g.failures_survived ? `${g.failures_survived} more may fail.` : 'One more failure stops locks.'}`]);
  if (h?.conditions?.length) for (const c of h.conditions) list.push([tone, c.message]);
  else if (h?.reason) list.push([tone, h.details ? `${h.reason}: ${h.details}` : h.reason]);
  if (status?.records_own && peers.size === 0) list.push(['wait', `Nobody else finds the ${counted(status.records_own, 'offer')} of this peer: no other peer is connected.`]);
  for (const s of services) if (!s.counts.UP) list.push(['bad', `No instance of ${s.name} is UP.`]);
  for (const s of services) if (s.counts.UP && s.counts.UP < s.total) list.push(['wait', `${s.name}: ${s.counts.UP} of ${s.total} instances are UP.`]);
  return list.map(([tone, text]) => [tone, peopled(text)]).filter(([, text], n, all) => all.findIndex(c => c[1] === text) === n).sort((a, b) => (a[0] === b[0] ? 0 : a[0] === 'bad' ? -1 : 1));
}

const mostCauses = 4;

// Ring shows the voters around the number that may fail, and learners outside.
function Ring({ group: g }) {
  const voters = g.voters || [], learners = g.learners || [];
  const at = (n, all, r) => [60 + r * Math.sin(2 * Math.PI * n / all), 60 - r * Math.cos(2 * Math.PI * n / all)];
  const silent = voters.filter(m => !m.active).length;
  return html`<svg class="ring" viewBox="0 0 120 120" role="img" aria-label=${`${counted(voters.length, 'voter')}, ${silent} silent; ${g.failures_survived ?? 0} may fail`}>
    <circle cx="60" cy="60" r="40" class="orbit" />
    ${voters.map((m, n) => { const [x, y] = at(n, voters.length, 40); return html`<g key=${m.peer_id}>${m.peer_id === g.leader && html`<circle cx=${x} cy=${y} r="13" class="leads" />`}<circle cx=${x} cy=${y} r="8" class=${m.active ? 'alive' : 'silent'}><title>${shown(named(m), 40)}</title></circle></g>`; })}
    ${learners.slice(0, 24).map((m, n) => { const [x, y] = at(n + 0.5, Math.min(learners.length, 24), 55); return html`<circle key=${m.peer_id} cx=${x} cy=${y} r="3" class="learner" />`; })}
    <text x="60" y="58">${g.failures_survived ?? 0}</text><text x="60" y="70" class="small">may fail</text></svg>`;
}

const Tile = ({ title, view, children }) => html`<section class="tile"><h3><a href=${`#/${view}`}>${title}</a></h3>${children}</section>`;

function LocksTile({ locks }) {
  if (!locks) return html`<p class="quiet">not loaded</p>`;
  return html`<p class="hero">${locks.length} <small>held</small></p><ul class="plain">${locks.slice(0, 3).map(l => html`<li key=${l.name}><${Text} most=${28}>${l.name}<//>
    <span class="quiet">${l.holding[0] && html`<${Text} most=${24}>${(l.holding[0].metadata && textOf(l.holding[0].metadata)) || l.holding[0].application || ownerName(l.holding[0].holder_id)}<//>, ${span(+l.holding[0].age_ms)}`}${l.waiting.length ? `, ${l.waiting.length} wait` : ''}</span></li>`)}</ul>`;
}

export function OverviewView() {
  const live = useLive();
  const { group: g, peers, offers, answer, loaded, planes, keysRevision } = live;
  const locks = useCall('/v1/coordination/locks?limit=500', [keysRevision], 5000).value?.locks;
  const usable = useCall('/v1/discovery/query?types=compute,storage,bandwidth,cdn&limit=1&exact_total=true', [offers.size], 15000).value?.total, known = usable === undefined || usable > offers.size; // a larger total counts what this page has not loaded
  const services = grouped(live.services), well = wellOf(services);
  const list = useMemo(() => [...offers.values()], [live.version]);
  const title = html`<${Heading} title="Overview">What this peer sees of its network.<//>`;
  if (!live.health || !peers) return html`${title}<${NotLoaded} />`;
  const wrong = causes(live, services), voters = g?.voters || [];
  const facts = [
    counted(peers.size + 1, 'peer'),
    g && voters.length > 0 && `${counted(voters.length, 'voter')}, ${g.failures_survived ? `${g.failures_survived} may fail` : 'none may fail'}`,
    loaded.has('services') && (services.length === 0 ? 'no services' : well === services.length ? `${counted(well, 'service')}, all UP` : `${well} of ${counted(services.length, 'service')} all UP`),
    loaded.has('offers') && `${counted(offers.size, 'offer')}${known || offers.size === 0 ? '' : `, ${usable} usable`}`,
    locks && `${counted(locks.length, 'lock')} held`,
  ].filter(Boolean);
  const tone = wrong[0]?.[0] ?? 'good', worst = services.filter(s => s.counts.UP !== s.total).concat(services.filter(s => s.counts.UP === s.total));
  return html`${title}<section class=${`verdict ${tone}`} aria-label="State"><p><b>${wrong.length ? shown(wrong[0][1], 300) : 'All well.'}</b> <span>${facts.join(' · ')}</span></p>
      ${wrong.length > 1 && html`<ul>${wrong.slice(1, mostCauses).map(([, text]) => html`<li key=${text}>${shown(text, 300)}</li>`)}${wrong.length > mostCauses && html`<li>and ${wrong.length - mostCauses} more</li>`}</ul>`}</section>
    <div class="tiles">
      ${planes.includes('coordination') && html`<${Tile} title="Voters" view="group">${g ? html`<${Ring} group=${g} /><p class="quiet">${g.leader ? html`led by <${Text} most=${24}>${named(voters.find(m => m.peer_id === g.leader) || { peer_id: g.leader })}<//>, term ${g.term}` : 'no leader'}</p>` : html`<p class="quiet">not loaded</p>`}<//>`}
      <${Tile} title="Apps" view="services">${!loaded.has('services') ? html`<p class="quiet">not loaded</p>` : html`<p class="hero">${well} <small>of ${counted(services.length, 'service')} all UP</small></p>
        <ul class="plain bars">${worst.slice(0, 4).map(s => html`<li key=${s.name}><a href=${`#/services?service=${encodeURIComponent(s.name)}`}><${Text} most=${20}>${s.name}<//></a><${Bar} ...${s} /></li>`)}</ul>`}<//>
      <${Tile} title="Offers" view="map">${!loaded.has('offers') ? html`<p class="quiet">not loaded</p>` : html`<p class="hero">${known ? offers.size : usable} <small>${known ? 'known' : `of ${offers.size} usable`}</small></p><${Legend} offers=${list} /><${Whole} of=${answer} />`}<//>
      ${planes.includes('coordination') && html`<${Tile} title="Locks" view="locks"><${LocksTile} locks=${locks} /><//>`}
    </div>
    <div class="beside"><${World} offers=${list} onPick=${() => go('map')} label=${`World map with ${list.length} offers; the view Map lists them`} />
      <section class="tile"><h3><a href="#/timeline">Recent events</a></h3>${live.events.length === 0 ? html`<p class="quiet">Nothing has changed since this page was opened.</p>` : html`<ul class="plain recent">${live.events.slice(0, 14).map(e => html`<li><span class="quiet">${ago(e.at)}</span> <${Text} most=${140}>${`${e.topic === 'history' ? '' : `${e.topic} `}${e.kind}: ${peopled(e.text)}`}<//></li>`)}</ul>`}</section></div>
    <${Elsewhere} commands=${[cli('status'), `curl ${location.origin}/v1/status`]} />`;
}
