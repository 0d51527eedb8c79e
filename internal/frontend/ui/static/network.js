// Peers, the tape of events, names, and figures.

import { call, html, useEffect, useMemo, useRef, useState, Elsewhere, Empty, Failed, Heading, NotLoaded, Table, Text, cli, dnsLines, fronts, nameOf, shown, short, where, go } from './lib.js';
import { live, nameOfPeer, peopled, useLive, Peer } from './live.js';
import { World } from './map.js';

const { uPlot } = globalThis;

// placesOf returns the place of each provider whose offers are all at one place. Peers do not say where they are.
function placesOf(offers) {
  const places = new Map();
  for (const o of offers.values()) {
    if (o.latitude === undefined) continue;
    const p = places.get(o.provider_id) ?? o;
    const near = p && Math.abs(p.latitude - o.latitude) < 0.5 && Math.abs(p.longitude - o.longitude) < 0.5;
    places.set(o.provider_id, near ? p : false);
  }
  return places;
}

const placeOf = p => (p ? [p.city, p.country].filter(Boolean).join(', ') || `${p.latitude.toFixed(1)}, ${p.longitude.toFixed(1)}` : '–');
const trip = p => (p.latency_ms ? `${p.latency_ms.toFixed(1)} ms` : '–');
const off = s => (Math.abs(s) < 0.005 ? 'exact' : `${s.toFixed(2)} s off`);

export function PeersView() {
  const { peers: known, status } = useLive();
  const peers = [...(known || new Map()).values()].sort((a, b) => (a.latency_ms || 1e9) - (b.latency_ms || 1e9));
  const places = useMemo(() => placesOf(live.offers), [known, live.offers.size]);
  const located = useMemo(() => peers.filter(p => places.get(p.id)).map(p => ({ ...places.get(p.id), key: p.id, type: 'peer', name: nameOfPeer(p.id) || short(p.id), note: trip(p) })), [known, places]);
  return html`<${Heading} title="Peers">The machines that this one is connected to. A round trip is the time of a ping.<//>
    ${status && html`<dl class="cards"><div><dt>this peer</dt><dd><${Peer} id=${status.peer_id} /></dd></div>
      <div><dt>network</dt><dd><${Text} most=${24}>${status.network}<//></dd></div><div><dt>reach</dt><dd>${shown(status.reach?.state, 20)}</dd></div>
      <div><dt>relayed connections</dt><dd>${status.reach?.relayed ?? 0}</dd></div>
      <div><dt>clock</dt><dd>${status.clock_offset_seconds === undefined ? 'unknown' : off(status.clock_offset_seconds)}</dd></div>
      <div><dt>offers kept</dt><dd>${status.records_kept}</dd></div></dl>`}
    ${!known ? html`<${NotLoaded} />` : peers.length === 0 ? html`<${Empty} title="Alone so far" command=${cli('invite')}>Give another machine the line that this command prints.<//>` : html`
    <${Table} label="Peers" head=${['peer', 'round trip', 'path', 'place', ['program'], ['address']]} rows=${peers.map(p => html`<tr key=${p.id}><td><${Peer} id=${p.id} /></td>
      <td class="number">${trip(p)}</td><td>${(p.addrs || []).some(a => a.includes('/p2p-circuit')) ? 'relayed' : 'direct'}</td><td><${Text} most=${30}>${placeOf(places.get(p.id))}<//></td>
      <td class="extra"><${Text} most=${30}>${p.agent || '–'}<//></td><td class="extra"><${Text} most=${50}>${(p.addrs || [])[0] || '–'}<//></td></tr>`)} />`}
    ${located.length > 0 && html`<h3>Peers with a known place</h3><p class="lead">All offers of such a peer are there.</p><${World} offers=${located} many="peers" onPick=${() => {}} label=${`World map with ${located.length} peers; the table above lists them`} />`}
    <${Elsewhere} commands=${[cli('peer ls'), `curl ${location.origin}/v1/peers`]} />`;
}

export function TimelineView() {
  const { events } = useLive();
  const { values } = where();
  const only = values.get('topic'), text = (values.get('text') || '').toLowerCase();
  const list = events.filter(e => (!only || e.topic === only) && (!text || e.text.toLowerCase().includes(text)));
  const set = (k, v) => {
    const next = new URLSearchParams(values);
    if (v) next.set(k, v); else next.delete(k);
    go('timeline', next);
  };
  return html`<${Heading} title="Timeline">The newest first. History is what mattered at this peer within the last hour; offers and services begin when this page was opened.<//><div class="heading"><label>topic <select name="topic" value=${only || ''} onChange=${e => set('topic', e.target.value)}><option value="">all</option>${['history', 'offers', 'services'].map(t => html`<option>${t}</option>`)}</select></label>
    <label>contains <input name="text" defaultValue=${values.get('text') || ''} onChange=${e => set('text', e.target.value)} /></label></div>
    ${list.length === 0 ? html`<${Empty} title="Quiet" command=${`curl -N '${location.origin}/v1/events?since=1h'`}>Nothing that this choice shows has happened yet.<//>` : html`
    <${Table} label="Events" head=${['time', ['topic'], 'event', 'what']} rows=${list.slice(0, 200).map(e => html`<tr><td class="number">${e.at.toLocaleTimeString()}</td><td class="extra">${e.topic}</td><td>${shown(e.kind, 20)}</td><td class="wraps"><${Text} most=${200}>${peopled(e.text)}<//></td></tr>`)} />
    <${Elsewhere} commands=${[cli('events --since 1h'), `curl -N '${location.origin}/v1/events?since=1h'`]} />`}`;
}

// NamesView shows what the name server answers: it reads the same catalogue. A browser cannot send DNS.
export function NamesView() {
  const { services } = useLive();
  const { values } = where();
  const name = values.get('service') || '';
  const up = [...services.values()].filter(i => i.service === name && i.health === 'UP');
  const ask = e => { e.preventDefault(); go('names', new URLSearchParams({ service: new FormData(e.target).get('service').trim() })); };
  const known = [...new Set([...services.values()].map(i => i.service))].sort();
  return html`<${Heading} title="DNS">What the name server of this peer answers for a service: its instances that are UP.<//><form class="filters" onSubmit=${ask} key=${name}><label for="dns-name">service<input id="dns-name" name="service" defaultValue=${name} list="names" autocomplete="off" /></label>
    <datalist id="names">${known.map(n => html`<option value=${n}></option>`)}</datalist><div class="actions"><button class="primary">Show</button></div></form>
    ${!name ? html`<${Empty} title="Choose a service" command=${dnsLines('web')[0]}>Every service has a name below service.${fronts.zone}.<//>` : html`
    <h3>${shown(nameOf(name))}</h3>
    ${!live.loaded.has('services') ? html`<${NotLoaded} />` : up.length === 0 ? html`<p class="failed">No instance is UP: the name server answers with no data.</p>` : html`<${Table} label="Answer" head=${['type', 'target', 'port']} rows=${up.map(i => html`<tr><td>SRV</td><td><${Text} most=${50}>${i.host || Object.values(i.interfaces || {})[0]}<//></td><td class="number">${i.port ?? '–'}</td></tr>`)} />`}
    <${Elsewhere} commands=${dnsLines(name)} />`}`;
}

const charts = [ // title, metric, whether it is a rate, factor
  ['connections', 'blackhole_connections'], ['CPU, % of a core', 'process_cpu_seconds_total', true, 100],
  ['resident memory, MB', 'process_resident_memory_bytes', false, 1e-6], ['received, kB/s', 'process_network_receive_bytes_total', true, 1e-3],
  ['own offers', 'blackhole_discovery_services_active'], ['queries/s', 'blackhole_discovery_queries_total', true],
  ['leases', 'blackhole_coordination_leases'], ['locks', 'blackhole_coordination_locks'], ['open files', 'process_open_fds'],
];

// lastMinute is the range of the time axis: all samples, and at least a minute. uPlot widens a single sample to years.
function lastMinute(plot) {
  const times = plot.data[0], last = times.at(-1) ?? Date.now() / 1000;
  return [Math.min(times[0] ?? last, last - 60), last];
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

function Chart({ title, times, values }) {
  const box = useRef(null), plot = useRef(null);
  useEffect(() => {
    const ink = getComputedStyle(document.documentElement).getPropertyValue('--quiet');
    const axis = { stroke: ink, grid: { stroke: 'rgba(128,128,128,.18)', width: 1 }, font: '11px system-ui' };
    const options = { width: box.current.clientWidth, height: 150, cursor: { show: false }, legend: { show: false }, scales: { x: { range: lastMinute }, y: { range: (_, low, high) => [0, (high || 1) * 1.2] } }, axes: [{ ...axis, space: 90, size: 30, values: (_, times) => times.map(t => clock.format(t * 1000)) }, { ...axis, size: 56 }], series: [{}, { stroke: '#3b63c9', width: 2, fill: 'rgba(59,99,201,.12)', points: { show: false } }] };
    plot.current = new uPlot(options, [times, values], box.current);
    return () => plot.current.destroy();
  }, []);
  useEffect(() => plot.current?.setData([times, values]), [times.length && times.at(-1)]);
  const last = values.at(-1);
  return html`<figure><figcaption>${title} <b>${last === undefined || last === null ? '–' : +last.toPrecision(4)}</b></figcaption><div ref=${box}></div></figure>`;
}

const history = { times: [], rows: [] }; // of this page, at most an hour

async function sample() {
  const text = await call('GET', '/v1/metrics');
  const sums = {};
  for (const line of text.split('\n')) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)/.exec(line);
    if (m) sums[m[1]] = (sums[m[1]] || 0) + Number(m[2]);
  }
  history.times.push(Date.now() / 1000);
  history.rows.push(sums);
  if (history.times.length > 720) { history.times.shift(); history.rows.shift(); }
}

export function FiguresView() {
  const [, draw] = useState(0);
  const [error, fail] = useState(null);
  useEffect(() => {
    const ask = () => sample().then(() => { fail(null); draw(n => n + 1); }, fail);
    ask();
    const second = setTimeout(ask, 1000); // rates need two samples
    const timer = setInterval(ask, 5000);
    return () => { clearTimeout(second); clearInterval(timer); };
  }, []);
  const values = ([, name, rate, factor = 1]) => history.rows.map((row, n) => {
    if (row[name] === undefined) return null;
    if (!rate) return row[name] * factor;
    const before = history.rows[n - 1];
    return before ? factor * (row[name] - before[name]) / (history.times[n] - history.times[n - 1]) : null;
  });
  const present = charts.filter(c => history.rows.at(-1)?.[c[1]] !== undefined);
  return html`<${Heading} title="Figures">This peer's own metrics, every 5 s while this view is open.<//><${Failed} error=${error} />
    <div class="charts">${present.map(c => html`<${Chart} key=${c[1]} title=${c[0]} times=${[...history.times]} values=${values(c)} />`)}</div>
    <${Elsewhere} commands=${[`curl ${location.origin}/v1/metrics`]} />`;
}
