// Peers, the tape of events, names, and figures.

import { call, html, may, useEffect, useMemo, useRef, useState, Elsewhere, Empty, Failed, Heading, NotLoaded, Table, Text, cli, dnsLines, fronts, mark, nameOf, shown, short, span, where, go } from './lib.js';
import { live, nameOfPeer, peopled, relayed, staleFor, useLive, Peer } from './live.js';
import { World } from './map.js';
import { known as topology, shares, Topology, useNarrow } from './topology.js';
import { counted, decimal } from './words.js';

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
const roleOf = id => { const g = live.group || {}; return id === g.leader ? 'leader' : g.voters?.some(m => m.peer_id === id) ? 'voter' : g.learners?.some(m => m.peer_id === id) ? 'learner' : '–'; };
const trip = p => (p.latency_ms ? `${p.latency_ms.toFixed(1)} ms` : '–');
const off = s => (Math.abs(s) < 0.005 ? 'exact' : `${s.toFixed(2)} s off`);

export function PeersView() {
  const { peers: known, status } = useLive();
  const peers = [...(known || new Map()).values()].sort((a, b) => (a.latency_ms || 1e9) - (b.latency_ms || 1e9));
  const places = useMemo(() => placesOf(live.offers), [known, live.offers.size]);
  const located = useMemo(() => peers.filter(p => places.get(p.id)).map(p => ({ ...places.get(p.id), key: p.id, type: 'peer', name: nameOfPeer(p.id) || short(p.id), note: trip(p) })), [known, places]);
  const share = shares(), placed = located.length > 0, away = topology(live).filter(p => !p.connected);
  return html`<${Heading} title="Peers">The machines that this one is connected to. A round trip is the time of a ping.<//><${Topology} />
    ${status && html`<dl class="cards"><div ...${mark('peer', status.peer_id)}><dt>this peer</dt><dd><${Peer} id=${status.peer_id} /></dd></div>
      <div><dt>network</dt><dd><${Text} most=${24}>${status.network}<//></dd></div><div><dt>reach</dt><dd>${shown(status.reach?.state, 20)}</dd></div>
      <div><dt>relayed connections</dt><dd>${status.reach?.relayed ?? 0}</dd></div>
      <div><dt>clock</dt><dd>${status.clock_offset_seconds === undefined ? 'unknown' : off(status.clock_offset_seconds)}</dd></div>
      <div><dt>offers kept</dt><dd>${decimal(status.records_kept)}</dd></div></dl>`}
    ${!known ? html`<${NotLoaded} />` : peers.length === 0 ? html`<${Empty} title="Alone so far" command=${cli('invite')}>Give another machine the line that this command prints.<//>` : html`
    <${Table} label="Peers" head=${['peer', 'in the group', 'round trip', 'path', ['offers'], ['instances'], placed && 'place', ['program'], ['address']]} rows=${peers.map(p => html`<tr key=${p.id} ...${mark('peer', p.id)}><td><${Peer} id=${p.id} /></td><td>${roleOf(p.id)}</td>
      <td class="number">${trip(p)}</td><td>${relayed(p) ? 'relayed' : 'direct'}</td><td class="number extra">${share.get(p.id)?.offers || '–'}</td><td class="number extra">${share.get(p.id)?.instances || '–'}</td>${placed && html`<td><${Text} most=${30}>${placeOf(places.get(p.id))}<//></td>`}
      <td class="extra"><${Text} most=${30}>${p.agent || '–'}<//></td><td class="extra"><${Text} most=${50}>${(p.addrs || [])[0] || '–'}<//></td></tr>`)} />`}
    ${away.length > 0 && html`<h3>Known and not connected</h3><${Table} label="Peers without a connection" head=${['peer', 'in the group', 'silent for']} rows=${away.map(p => html`<tr key=${p.id} ...${mark('peer', p.id)}><td><${Peer} id=${p.id} /></td><td>${roleOf(p.id)}</td><td class="number">${p.silent ? span(p.silent) : '–'}</td></tr>`)} />`}
    ${placed && html`<h3>Peers with a known place</h3><p class="lead">All offers of such a peer are there.</p><${World} offers=${located} many="peers" onPick=${() => {}} label=${`World map with ${located.length} peers; the table above lists them`} />`}
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
  const { services, loaded } = useLive();
  const name = where().values.get('service') || '';
  const upOf = service => [...services.values()].filter(i => i.service === service && i.health === 'UP');
  const up = upOf(name), known = [...new Set([...services.values()].map(i => i.service))].sort();
  const lead = html`<${Heading} title="DNS">What the name server of this peer answers for a service: its instances that are UP.<//>`;
  if (!loaded.has('services')) return html`${lead}<${NotLoaded} />`;
  if (!name) return html`${lead}${known.length === 0 ? html`<${Empty} title="No services yet" needs="service" command=${cli('instance register web --port 8080 --host 127.0.0.1')}>Every service has a name below service.${fronts.zone}.<//>` : html`
    <${Table} label="Names" head=${['name', 'answers']} rows=${known.map(n => html`<tr key=${n}><td><a href=${`#/names?service=${encodeURIComponent(n)}`}><${Text} most=${60}>${nameOf(n)}<//></a></td><td class="number">${upOf(n).length || 'no data'}</td></tr>`)} />
    <${Elsewhere} commands=${dnsLines(known[0])} />`}`;
  return html`<p class="back"><a href="#/names">← all names</a></p>${lead}<h3>${shown(nameOf(name))}</h3>
    ${up.length === 0 ? html`<p class="failed">No instance is UP: the name server answers with no data.</p>` : html`<${Table} label="Answer" head=${['type', 'target', 'port']} rows=${up.map(i => html`<tr><td>SRV</td><td><${Text} most=${50}>${i.host || Object.values(i.interfaces || {})[0]}<//></td><td class="number">${i.port ?? '–'}</td></tr>`)} />`}
    <${Elsewhere} commands=${dnsLines(name)} />`;
}

// Lanes of the hour: kinds of notes, with the word for them, and whether they are bad news.
const lanes = [['lock', 'locks lost', true], ['instance', 'instances ended'], ['peer', 'peers lost'], ['voters', 'voters changed'], ['offer', 'own offers'], ['grant', 'grants']];

// phases are the times between notes: [what, from, to], with to undefined while it lasts. read returns the lane of a note and what begins
// there; null ends it.
function phases(notes, read) {
  const list = [], open = new Map();
  for (const n of notes) {
    const [lane, what] = read(n) || [];
    if (lane === undefined) continue;
    if (open.has(lane)) open.get(lane)[2] = n.at;
    open.delete(lane);
    if (what === null) continue;
    list.push([what, n.at]);
    open.set(lane, list.at(-1));
  }
  return list;
}

// minutes groups notes by the minute since a time.
function minutes(list, from) {
  const all = new Map();
  for (const n of list) {
    const minute = Math.floor((n.at - from) / 60e3);
    all.set(minute, [...(all.get(minute) || []), n]);
  }
  return [...all];
}

// Hour draws what the peer remembers: who led, what was wrong, and how much happened in each minute.
function Hour() {
  const { notes: all, group } = useLive(), small = useNarrow();
  const [width, left, right] = small ? [380, 104, 366] : [1000, 130, 980];
  const now = Date.now(), from = now - 3600e3, notes = all.filter(n => n.at > from);
  const started = notes.find(n => n.kind === 'peer' && n.text.startsWith('this peer started'))?.at;
  const x = at => left + (right - left) * (Math.max(from, Math.min(at, now)) - from) / 3600e3;
  const led = phases(notes, n => (n.kind === 'leader' ? ['', n.subject] : n.kind === 'quorum' && n.text.includes('is lost') ? ['', null] : undefined));
  if (!led.length && group?.leader) led.push([group.leader, new Date(started ?? from)]);
  const wrong = phases(notes, n => (n.kind === 'quorum' || n.kind === 'condition' ? [n.subject, /^the quorum is lost|^\w+ began/.test(n.text) ? n.subject : null] : undefined));
  const names = [...new Set(wrong.map(p => p[0]))];
  const counts = lanes.map(([kind, word, bad]) => [word, bad, notes.filter(n => n.kind === kind && !n.text.startsWith('this peer started'))]).filter(([, , list]) => list.length > 0);
  const rows = [...(led.length || group ? [['leader']] : []), ...names.map(n => [n]), ...counts], height = 26 * rows.length + 24;
  const row = n => 8 + 26 * n, base = rows.length - counts.length;
  const band = ([what, begin, end], n, tone, title) => html`<rect class=${`band ${tone}`} x=${x(begin)} y=${row(n)} width=${Math.max(2, x(end ?? now) - x(begin))} height="16"><title>${shown(title, 120)}</title></rect>`;
  const leads = id => nameOfPeer(id) || shown(peopled(id), 20);
  return html`<figure class="hour"><figcaption>the last hour${started && ` (this peer started ${span(now - started)} ago)`}</figcaption><svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`The last hour: ${counted(led.length, 'leader')}, ${counted(wrong.length, 'disturbance')}, ${counts.map(([word, , list]) => `${list.length} ${word}`).join(', ') || 'nothing else'}`}>
    ${started && html`<rect class="unknown" x=${left} y="4" width=${x(started) - left} height=${height - 26} />`}
    ${rows.map(([word], n) => html`<text class="word" x=${left - 8} y=${row(n) + 12}>${shown(word.replaceAll('_', ' '), 18)}</text><line class="rule" x1=${left} x2=${right} y1=${row(n) + 18} y2=${row(n) + 18} />`)}
    ${led.map((p, i) => html`${band(p, 0, `l${i % 2}`, `${leads(p[0])} led from ${p[1].toLocaleTimeString()}`)}${x(p[2] ?? now) - x(p[1]) > 50 && html`<text class="in" x=${x(p[1]) + 6} y=${row(0) + 12}>${leads(p[0])}</text>`}`)}
    ${wrong.map(p => band(p, (led.length || group ? 1 : 0) + names.indexOf(p[0]), p[0] === 'no_quorum' ? 'bad' : 'wait', `${p[0]} for ${span((p[2] ?? now) - p[1])}`))}
    ${counts.map(([, bad, list], i) => minutes(list, from).map(([minute, some]) => { const tall = Math.min(16, 4 + 3 * some.length); return html`<rect class=${bad ? 'band bad' : 'band tick'} x=${x(from + minute * 60e3)} y=${row(base + i) + 16 - tall} width=${small ? 4 : 12} height=${tall}><title>${shown(`${some.length}: ${peopled(some[0].text)}`, 140)}</title></rect>`; }))}
    ${[0, 15, 30, 45, 60].filter(m => !small || m % 30 === 0).map(m => html`<text class="tick-name" x=${x(from + m * 60e3) - (small && m === 60 ? 8 : 0)} y=${height - 4}>${m === 60 ? 'now' : `-${60 - m} min`}</text>`)}
  </svg></figure>`;
}

const charts = [ // title, metric, whether it is a rate of what this process counts from its start, factor, unit
  ['connections', 'blackhole_connections'], ['CPU, % of a core', 'process_cpu_seconds_total', true, 100],
  ['resident memory', 'process_resident_memory_bytes', false, 1, 'B'], ['with other peers', 'blackhole_stream_bytes_total', true, 1, 'B/s'],
  ['own offers', 'blackhole_discovery_services_active'], ['queries/s', 'blackhole_discovery_queries_total', true],
  ['leases', 'blackhole_coordination_leases'], ['locks', 'blackhole_coordination_locks'], ['open files', 'process_open_fds'],
];

// lastMinute is the range of the time axis: all samples, and at least a minute. uPlot widens a single sample to years.
function lastMinute(plot) {
  const times = plot.data[0], last = times.at(-1) ?? Date.now() / 1000;
  return [Math.min(times[0] ?? last, last - 60), last];
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

function Chart({ title, unit, times, values, usual }) {
  const box = useRef(null), plot = useRef(null), first = Math.min(times[0], times.at(-1) - 60), data = [[first, ...times], [null, ...values], [first, ...times].map(() => usual ?? null)]; // the average has been there before
  useEffect(() => {
    const ink = getComputedStyle(document.documentElement).getPropertyValue('--quiet');
    const axis = { stroke: ink, grid: { stroke: 'rgba(128,128,128,.18)', width: 1 }, font: '11px system-ui' };
    const options = { width: box.current.clientWidth, height: 150, cursor: { show: false }, legend: { show: false }, scales: { x: { range: lastMinute }, y: { range: (_, low, high) => [0, (high || 1) * 1.2] } }, axes: [{ ...axis, space: 90, size: 30, values: (_, times) => times.map(t => clock.format(t * 1000)) }, { ...axis, size: 66, values: (_, list) => list.map(n => decimal(n, unit)) }], series: [{}, { stroke: '#3b63c9', width: 2, fill: 'rgba(59,99,201,.12)', points: { show: u => u.data[0].length < 4 } }, { stroke: ink, width: 1, dash: [4, 4], points: { show: false } }] };
    plot.current = new uPlot(options, data, box.current);
    const watch = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: 150 }));
    watch.observe(box.current);
    return () => { watch.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => plot.current?.setData(data), [times.length && times.at(-1)]);
  const last = values.at(-1);
  return html`<figure><figcaption>${title} ${usual !== undefined && html`<small title="since this peer started: the dashed line">average ${decimal(usual, unit)}</small>`}<b>${last === undefined || last === null ? '–' : decimal(last, unit)}</b></figcaption><div ref=${box}></div></figure>`;
}

const history = { times: [], rows: [] }; // of this page, at most an hour

// The page keeps sampling while a page is visible, so that charts have a past when their view is opened.
const every = 10000;
setInterval(() => { if (!document.hidden && live.link === 'live' && Date.now() / 1000 - (history.times.at(-1) ?? 0) > 8) sample().catch(() => {}); }, every);

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
    return before && row[name] >= before[name] ? factor * (row[name] - before[name]) / (history.times[n] - history.times[n - 1]) : null; // a peer that restarts counts from zero
  });
  const now = history.rows.at(-1), up = now && Math.max(1, history.times.at(-1) - now.process_start_time_seconds);
  const usualOf = ([, name, rate, factor = 1]) => (rate && up ? factor * now[name] / up : undefined);
  const present = charts.filter(c => history.rows.at(-1)?.[c[1]] !== undefined);
  return html`<${Heading} title="Figures">The hour that this peer remembers, and its metrics since this page was opened.<//><${Hour} /><${Failed} error=${error} />
    <div class="charts">${present.map(c => html`<${Chart} key=${c[1]} title=${c[0]} unit=${c[4]} usual=${usualOf(c)} times=${[...history.times]} values=${values(c)} />`)}</div>
    <${Elsewhere} commands=${[`curl ${location.origin}/v1/metrics`]} />`;
}
