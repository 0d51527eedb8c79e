// The world with offers: drawn on a canvas, clustered where they overlap.

import { asOffer, call, colour, html, price, types, Price, useEffect, useMemo, useRef, useState, ago, cli, Elsewhere, Empty, Failed, Heading, NotLoaded, Table, Text, Whole, mark, shown, where, go } from './lib.js';
import { useLive, Peer } from './live.js';
import { decimal, label as labelOf, money, quantity } from './words.js';

const { d3, topojson } = globalThis;
const cell = 28; // pixels: offers in one cell of the screen are one cluster

let world, ground; // read once, by the first map: the promise, and what it gave

const drawn = 4096; // scale of the shapes: they are projected once, and every movement only transforms them

function loadWorld() {
  world ??= fetch('vendor/countries-110m.json').then(a => a.json()).then(w => {
    const path = d3.geoPath(d3.geoEqualEarth().scale(drawn).translate([0, 0]).precision(1)).digits(1);
    const shape = geometry => new Path2D(path(geometry));
    return ground = {
      sea: shape({ type: 'Sphere' }), land: shape(topojson.feature(w, w.objects.land)),
      borders: shape(topojson.mesh(w, w.objects.countries, (a, b) => a !== b)),
    };
  });
  return world;
}

const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name);

// spot is the place of an offer before zoom and movement. An offer keeps it, because a projection costs more than a drawing.
const spot = o => (o.spot ??= d3.geoEqualEarthRaw(o.longitude * Math.PI / 180, o.latitude * Math.PI / 180));

// Chart keeps the projection and what is drawn. It knows nothing of the page around it.
class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.zoom = 1;
    this.centre = [0.5, 0.5]; // of the whole map
    this.clusters = [];
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const scale = globalThis.devicePixelRatio || 1;
    [this.width, this.height, this.scale] = [box.width, box.height, scale];
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    this.fit();
  }

  fit() {
    const { width, height, zoom } = this;
    this.projection = d3.geoEqualEarth().fitExtent([[8, 8], [width * zoom - 8, height * zoom - 8]], { type: 'Sphere' });
    const [x, y] = this.projection.translate();
    this.projection.translate([x - this.centre[0] * width * zoom + width / 2, y - this.centre[1] * height * zoom + height / 2]);
    this.projection.clipExtent([[-50, -50], [width + 50, height + 50]]); // of the disc
  }

  move(dx, dy) {
    const hold = n => Math.min(1, Math.max(0, n));
    this.centre = [hold(this.centre[0] + dx / (this.width * this.zoom)), hold(this.centre[1] + dy / (this.height * this.zoom))];
    this.fit();
  }

  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const next = Math.min(64, Math.max(1, this.zoom * factor));
    this.move(x - this.width / 2, y - this.height / 2);
    this.zoom = next;
    this.move(this.width / 2 - x, this.height / 2 - y);
    if (next === 1) this.centre = [0.5, 0.5];
    this.fit();
  }

  // show moves to a disc, which then takes most of the height.
  show({ lat, lon, km }) {
    const { width, height } = this;
    Object.assign(this, { zoom: 1, centre: [0.5, 0.5] });
    this.fit();
    const [x, y] = this.projection([lon, lat]), across = 2 * km / 6371 * this.projection.scale();
    this.zoom = Math.min(24, Math.max(1, 0.75 * height / across));
    this.centre = [x / width, y / height];
    this.move(0, 0);
  }

  drawGround(shapes) {
    const c = this.context, [x, y] = this.projection.translate(), factor = this.projection.scale() / drawn;
    c.save();
    c.translate(x, y);
    c.scale(factor, factor);
    c.fillStyle = ink('--sea');
    c.fill(shapes.sea);
    c.fillStyle = ink('--land');
    c.fill(shapes.land);
    c.strokeStyle = ink('--border');
    c.lineWidth = 0.6 / factor;
    c.stroke(shapes.borders);
    c.restore();
  }

  draw(shapes, offers, disc) {
    const c = this.context;
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    this.drawGround(shapes);
    if (disc) this.drawDisc(disc);
    this.cluster(offers);
    const rim = ink('--sea');
    [c.font, c.textAlign, c.textBaseline] = ['600 10px system-ui, sans-serif', 'center', 'middle'];
    for (const k of this.clusters) this.drawCluster(k, rim);
  }

  drawDisc({ lat, lon, km }) {
    const c = this.context;
    c.beginPath();
    d3.geoPath(this.projection, c)(d3.geoCircle().center([lon, lat]).radius(km / 111.195)());
    c.fillStyle = ink('--disc');
    c.fill();
    c.strokeStyle = ink('--accent');
    c.lineWidth = 1.5;
    c.stroke();
  }

  cluster(offers) {
    const cells = new Map();
    const columns = Math.ceil(this.width / cell) + 1;
    const scale = this.projection.scale(), [left, top] = this.projection.translate();
    for (const o of offers) {
      if (o.latitude === undefined) continue;
      const at = spot(o), x = left + at[0] * scale, y = top - at[1] * scale;
      if (x < 0 || y < 0 || x > this.width || y > this.height) continue;
      const key = Math.floor(y / cell) * columns + Math.floor(x / cell);
      let k = cells.get(key);
      if (!k) cells.set(key, k = { x: 0, y: 0, r: 0, offers: [], kinds: {} });
      k.x += x;
      k.y += y;
      k.offers.push(o);
      k.kinds[o.type] = (k.kinds[o.type] || 0) + 1;
    }
    this.clusters = [...cells.values()];
    for (const k of this.clusters) {
      k.x /= k.offers.length;
      k.y /= k.offers.length;
      k.r = k.offers.length === 1 ? (k.offers[0].number ? 8.5 : 4.5) : Math.min(cell / 2 + 1, (k.offers[0].number ? 9.5 : 6.5) + 1.2 * Math.log2(k.offers.length));
    }
  }

  // drawCluster draws a disc below the pie as its rim: to stroke one took longer.
  drawCluster(k, rim) {
    const c = this.context, all = k.offers.length;
    this.fillArc(k, k.r + 1.2, 0, 2 * Math.PI, rim);
    let from = -Math.PI / 2;
    for (const type in k.kinds) {
      const to = from + 2 * Math.PI * k.kinds[type] / all;
      this.fillArc(k, k.r, from, to, colour(type));
      from = to;
    }
    c.fillStyle = '#fff';
    if (k.offers[0].number) { // a result: its number in the list, of several the first
      c.fillText(all > 1 ? `${k.offers[0].number}+` : k.offers[0].number, k.x, k.y + 0.5);
      return;
    }
    if (all < 3) return;
    c.fillText(all > 999 ? `${Math.round(all / 1000)}k` : all, k.x, k.y + 0.5);
  }

  fillArc({ x, y }, r, from, to, ink) {
    const c = this.context;
    c.beginPath();
    if (to - from < 6.28) c.moveTo(x, y);
    c.arc(x, y, r, from, to);
    c.fillStyle = ink;
    c.fill();
  }

  at(x, y) {
    let best = null;
    for (const k of this.clusters) {
      const d = Math.hypot(k.x - x, k.y - y);
      if (d < Math.max(k.r, 8) && (!best || d < best.d)) best = { d, k };
    }
    return best?.k;
  }
}

// whatOf names what an offer sells, as the command line does: the GPUs first.
export function whatOf({ capabilities: c = {} }) {
  const parts = [], gpus = new Map();
  for (const g of c.compute?.gpus || []) {
    const name = `${g.model || 'GPU'}${g.memory_mb ? ` ${decimal(g.memory_mb * 1e6, 'B')}` : ''}`;
    gpus.set(name, (gpus.get(name) || 0) + 1);
  }
  for (const [name, n] of gpus) parts.push(`${n}x ${name}`);
  if (c.compute?.cpu_cores) parts.push(`${c.compute.cpu_cores} cores`);
  if (c.storage?.available_space) parts.push(`${decimal(c.storage.available_space, 'B')} free`);
  if (c.bandwidth) parts.push(`${c.bandwidth.download_mbps || 0}/${c.bandwidth.upload_mbps || 0} Mbit/s`);
  if (c.cdn?.bandwidth_mbps) parts.push(decimal(c.cdn.bandwidth_mbps * 1e6, 'bit/s'));
  return parts.join(', ');
}

const sold = o => [whatOf(o), price(o)].filter(Boolean).join(', ');

// World is the canvas with its controls. onPick gets the offers of a cluster. Children lie over the map.
export function World({ offers, disc, onPick, label, many = 'offers', children }) {
  const canvas = useRef(null), chart = useRef(null), latest = useRef({});
  const [hover, setHover] = useState(null);
  latest.current = { offers, disc };
  const due = useRef(false);
  const redraw = () => { // once in a frame, however much moves in it
    if (due.current) return;
    due.current = true;
    requestAnimationFrame(async () => {
      await loadWorld();
      due.current = false;
      draw();
    });
  };
  const draw = () => {
    const c = chart.current;
    if (c && c.width && ground) c.draw(ground, latest.current.offers, latest.current.disc);
  };
  useEffect(() => {
    chart.current = new Chart(canvas.current);
    const watch = new ResizeObserver(() => {
      const first = !chart.current.width;
      chart.current.resize();
      if (first && latest.current.disc) chart.current.show(latest.current.disc);
      draw();
      redraw();
    }); // at once: a new size empties the canvas
    watch.observe(canvas.current);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', redraw);
    const wheel = e => {
      if (chart.current.zoom === 1 && e.deltaY > 0) return; // nothing to zoom out of: the page scrolls
      e.preventDefault();
      chart.current.zoomBy(e.deltaY < 0 ? 1.25 : 0.8, e.offsetX, e.offsetY);
      redraw();
    };
    canvas.current.addEventListener('wheel', wheel, { passive: false });
    const held = canvas.current;
    return () => { watch.disconnect(); dark.removeEventListener('change', redraw); held.removeEventListener('wheel', wheel); chart.current = null; };
  }, []);
  useEffect(() => {
    if (disc && chart.current.width) chart.current.show(disc);
  }, [disc]);
  useEffect(() => { redraw(); }, [offers, disc]);
  const drag = useRef(null);
  const act = (f, ...args) => { chart.current[f](...args); redraw(); };
  const down = e => { drag.current = { x: e.clientX, y: e.clientY, moved: false }; e.target.setPointerCapture(e.pointerId); };
  const move = e => {
    const d = drag.current;
    if (d && Math.hypot(e.clientX - d.x, e.clientY - d.y) > 3) {
      act('move', d.x - e.clientX, d.y - e.clientY);
      drag.current = { x: e.clientX, y: e.clientY, moved: true };
    } else if (!d) {
      const k = chart.current?.at(e.offsetX, e.offsetY);
      setHover(k ? { x: k.x, y: k.y, offers: k.offers } : null);
    }
  };
  const up = e => {
    const moved = drag.current?.moved;
    drag.current = null;
    const k = !moved && chart.current.at(e.offsetX, e.offsetY);
    if (k) onPick(k.offers);
  };
  const key = e => {
    const steps = { ArrowLeft: ['move', -60, 0], ArrowRight: ['move', 60, 0], ArrowUp: ['move', 0, -60], ArrowDown: ['move', 0, 60], '+': ['zoomBy', 1.5], '=': ['zoomBy', 1.5], '-': ['zoomBy', 1 / 1.5] };
    if (!steps[e.key]) return;
    e.preventDefault();
    act(...steps[e.key]);
  };
  return html`<div class="world">
    <canvas ref=${canvas} tabindex="0" role="img" aria-label=${label} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${() => { drag.current = null; }} onPointerLeave=${() => setHover(null)} onKeyDown=${key}></canvas>
    <div class="zoom"><button type="button" aria-label="Zoom in" onClick=${() => act('zoomBy', 1.6)}>+</button><button type="button" aria-label="Zoom out" onClick=${() => act('zoomBy', 1 / 1.6)}>−</button></div>
    ${hover && html`<div class="tip" style=${{ left: `${hover.x}px`, top: `${hover.y}px` }}>
      ${hover.offers.length === 1 ? html`<b><${Text} most=${40}>${hover.offers[0].name || hover.offers[0].id}<//></b><span>${hover.offers[0].note ?? sold(hover.offers[0])}</span>` : html`<b>${hover.offers.length} ${many}</b><span>click to list</span>`}
    </div>`}
    ${children}
  </div>`;
}

// What the parts of a score ask.
const asks = { health: 'Was it well when peers looked?', price: 'Is it cheap, against the price that you gave?', performance: 'Does it answer quickly?', location: 'Is it near?' };

const partOf = line => /^(.+?) ([\d.]+) of ([\d.]+): (.*)$/.exec(line);

// scoreOf says a score in words.
export const scoreOf = o => [`${o.score.toFixed(1)} of 100 points`, ...o.parts.map(partOf).filter(Boolean).map(p => `${p[1]} ${(+p[2]).toFixed(1)} of ${+p[3]}`)].join(', ');

// Why shows how an offer got its score: each part with its share, as the peer explains it.
const Why = ({ offer }) => offer.parts?.length > 0 && html`<h4>Score ${offer.score.toFixed(1)} of 100</h4><p class="quiet">What peers measured earns points; what a provider claims earns none.</p><ul class="why">${offer.parts.map(line => {
  const part = partOf(line);
  return part ? html`<li><span title=${asks[part[1]]}>${shown(part[1], 30)}</span><meter min="0" max=${part[3]} value=${part[2]} aria-label=${part[1]}></meter>
    <span class="number">${+part[2]} of ${+part[3]}</span><span class="quiet">${shown(`${asks[part[1]] ? `${asks[part[1]]} ` : ''}${part[4]}`, 160)}</span></li>` : html`<li>${shown(line, 160)}</li>`;
})}</ul>`;

// Panel lies over the map on wide screens and below it on narrow ones. It shows itself to a reader who has chosen in the
// table far below.
function Panel({ label, title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => box.current.scrollIntoView({ block: 'nearest' }), [title]);
  return html`<section class="panel over" aria-label=${label} ref=${box}><header><h3><${Text} most=${60}>${title}<//></h3><button type="button" onClick=${onClose} aria-label="Close">×</button></header>${children}</section>`;
}

const mostPicked = 50;

// Picked shows what the reader has chosen: one offer, or a list of those in a circle.
export function Picked({ offers, onPick }) {
  if (!offers) return null;
  const close = () => onPick(null);
  if (offers.length === 1) return html`<${Offer} offer=${offers[0]} onClose=${close} />`;
  return html`<${Panel} label="Offers here" title=${`${offers.length} offers here`} onClose=${close}>
    <ul class="picks">${offers.slice(0, mostPicked).map(o => html`<li key=${o.key}><i class="dot" style=${{ background: colour(o.type) }}></i><button type="button" class="link" onClick=${() => onPick([o])}><${Text} most=${40}>${o.name || o.id}<//></button><span class="quiet">${sold(o)}</span></li>`)}</ul>
    ${offers.length > mostPicked && html`<p class="quiet">The first ${mostPicked}. Zoom in for fewer.</p>`}<//>`;
}

// verdictOf says what was found at an endpoint, by whom and when.
const verdictOf = e => (e ? `${e.state}${e.checked_at ? ` (${e.peers ? `${e.peers} measurers` : 'this peer'}, ${ago(e.checked_at)})` : ''}` : undefined);

// groupsOf puts what is known of an offer under the questions of a buyer. Only the last group is a claim alone.
function groupsOf(o, r) {
  const m = r?.metadata || {}, s = m.stock, h = r?.health, p = r?.pricing || {};
  return [
    ['Price and terms', [
      ['price', o.price === undefined ? undefined : html`<${Price} of=${o} />`], ['exact', o.price === undefined || +money(o.price).replaceAll(',', '') === o.price ? undefined : `${o.price} ${o.currency} ${o.price_unit}`],
      ['at least', p.minimum_commitment ? `${p.minimum_commitment} ${o.currency}` : undefined], ...Object.entries(p.tier_pricing || {}).map(([tier, n]) => [tier, `${n} ${o.currency}`]),
      ['stock', s && `${s.total} ${s.unit}${s.max_ttl ? `, each at most ${quantity('max_ttl', s.max_ttl)}` : ''}`],
    ]],
    ['What peers found', [
      ['endpoint', verdictOf(o.endpoint)], ['found there', o.endpoint?.detail], ['its own words', o.endpoint?.endpoint_text],
      ['domain', m.domain && `${m.domain} (${o.domain?.detail ? `claimed; ${o.domain.detail}` : o.domain?.state || 'claimed'})`],
      ['peer', o.measured ? `${o.measured.state}${o.measured.round_trip_ms ? `, ${o.measured.round_trip_ms.toFixed(1)} ms` : ''} (by ${o.measured.by || 'self'})` : undefined],
      ...(o.doubts || []).map(d => ['doubtful', d]),
    ]],
    ['Where and who', [
      ['place', [o.city, o.country].filter(Boolean).join(', ')], ['distance', o.distance_km === undefined ? undefined : `${o.distance_km.toFixed(0)} km`],
      ['reached', m.access === 'peer' ? 'through its peer, with a grant' : (m.endpoints || []).join(' ')], ['provider', html`<${Peer} id=${o.provider_id} />`],
      ['signed', r && `Ed25519, verified by this peer; version ${r.sequence}`], ['age', `${ago(o.updated_at)}, valid until ${new Date(o.expires_at).toLocaleString()}`],
    ]],
    ...Object.entries(r?.capabilities || {}).map(([block, of]) => [`Claimed: ${block}`, Object.entries(of).map(([k, v]) => [labelOf(k), quantity(k, v)])]),
    ['Also claimed', [
      ['about', m.description], ['health', h && [h.status, h.uptime_percent !== undefined && `${h.uptime_percent} % uptime`, h.response_time_ms !== undefined && `${h.response_time_ms} ms`].filter(Boolean).join(', ')],
      ['protocols', (m.protocols || []).join(', ')], ...Object.entries(m.attributes || {}),
    ]],
  ].map(([title, rows]) => [title, rows.filter(([, v]) => v !== '' && v !== undefined && v !== null && v !== false)]).filter(([, rows]) => rows.length > 0);
}

// Offer shows the whole record of an offer, as its provider signed it, beside what peers measured.
export function Offer({ offer, onClose }) {
  const [state, set] = useState({});
  useEffect(() => {
    set({});
    call('GET', `/v1/discovery/resolve?key=${encodeURIComponent(offer.key)}`).then(record => set({ record }), error => set({ error }));
  }, [offer.key]);
  return html`<${Panel} label="Offer" title=${offer.name || offer.id} onClose=${onClose}>
    <p class="what"><i class="dot" style=${{ background: colour(offer.type) }}></i><b>${shown([offer.type, offer.subtype].filter(Boolean).join(' / '), 60)}</b> <${Text} most=${100}>${whatOf(offer)}<//></p>
    <${Failed} error=${state.error} />${groupsOf(offer, state.record).map(([title, rows]) => html`<h4>${shown(title, 40)}</h4><dl>${rows.map(([k, v]) => html`<dt>${shown(k, 40)}</dt><dd>${typeof v === 'object' ? v : html`<${Text} most=${160}>${v}<//>`}</dd>`)}</dl>`)}<${Why} offer=${offer} /><//>`;
}

export const Legend = ({ offers }) => {
  const counts = {};
  for (const o of offers) counts[o.type] = (counts[o.type] || 0) + 1;
  const rest = Object.keys(counts).filter(t => !types.includes(t));
  return html`<ul class="legend">${[...types, ...rest].filter(t => counts[t]).map(t => html`<li><i style=${{ background: colour(t) }}></i>${shown(t, 20)} <b>${counts[t]}</b></li>`)}</ul>`;
};

const placeOf = o => [o.city, o.country].filter(Boolean).join(', ');

const fewRows = 50;

// OfferTable lists offers, as many as the reader wants to see. It leaves the column of places out if no offer has one.
function OfferTable({ label, offers, onPick }) {
  const [most, set] = useState(fewRows);
  const placed = offers.some(placeOf);
  return html`<${Table} label=${label} head=${['offer', ['what'], ['type'], 'price', placed && ['place'], ['provider']]} rows=${offers.slice(0, most).map(o => html`<tr key=${o.key} ...${mark('offer', o.key)}>
      <td class="cut"><button type="button" class="link" onClick=${() => onPick([o])}><${Text} most=${40}>${o.name || o.id}<//></button><span class="quiet small"><${Text} most=${80}>${[whatOf(o), placeOf(o)].filter(Boolean).join(' · ')}<//></span></td><td class="cut extra"><${Text} most=${60}>${whatOf(o) || '–'}<//></td>
      <td class="extra"><i class="dot" style=${{ background: colour(o.type) }}></i>${shown(o.type, 16)}</td><td class="number"><${Price} of=${o} /></td>
      ${placed && html`<td class="cut extra"><${Text} most=${30}>${placeOf(o) || '–'}<//></td>`}<td class="extra"><${Peer} id=${o.provider_id} /></td></tr>`)} />
    ${offers.length > most && html`<p class="quiet">The first ${most} of ${offers.length}. <button type="button" onClick=${() => set(most + 2 * fewRows)}>Show more</button></p>`}`;
}

const names = new Intl.Collator('en', { numeric: true });
const byName = (a, b) => names.compare(a.name || a.id, b.name || b.id);

export function MapView() {
  const { offers, loaded, answer, version } = useLive();
  const [picked, pick] = useState(null);
  useEffect(() => { loadWorld(); }, []); // while the offers are on their way
  const { values } = where();
  const only = values.get('type');
  const list = useMemo(() => [...offers.values()].filter(o => !only || o.type === only).sort(byName), [version, only]);
  const key = values.get('offer');
  useEffect(() => { // an offer that the address bar names: one of these, or asked for
    if (!key) return undefined;
    let gone = false;
    const known = [...offers.values()].find(o => o.key === key);
    if (known) pick([known]);
    else call('GET', `/v1/discovery/resolve?key=${encodeURIComponent(key)}`).then(record => gone || pick([asOffer({ record })]), () => {}); // gone: the list says what there is
    return () => { gone = true; };
  }, [key, loaded.has('offers')]);
  const choose = type => go('map', type ? new URLSearchParams({ type }) : undefined);
  const title = html`<${Heading} title="Map of offers">Everything that providers of this network offer. A circle with a number joins offers that are close to each other: zoom in, or click it.<//>`;
  if (offers.size === 0 && !loaded.has('offers')) return html`${title}<${NotLoaded} />`;
  if (offers.size === 0) {
    return html`${title}<${Empty} title="No offers yet" needs="admin" command=${cli('offer register -f offer.yaml')}>Announce one at this peer, or join a network whose peers have some.<//>`;
  }
  return html`${title}<div class="heading"><label>type <select name="type" value=${only || ''} onChange=${e => choose(e.target.value)}><option value="">all</option>${types.map(t => html`<option>${t}</option>`)}</select></label><${Legend} offers=${list} /></div>
    <${World} offers=${list} onPick=${pick} label=${`World map with ${list.length} offers. The table below lists them. Arrow keys move, plus and minus zoom.`}><${Picked} offers=${picked} onPick=${pick} /><//>
    <div class="titled"><h3>${list.length} offers</h3><${Whole} of=${answer} /></div><${OfferTable} label="Offers" offers=${list} onPick=${pick} />
    <${Elsewhere} commands=${[cli(`offer find --type ${only || types.join(',')}`), `curl ${location.origin}/v1/discovery/query?types=${only || types.join(',')}`]} />`;
}
