// The world with offers: drawn on a canvas, clustered where they overlap.

import { call, colour, html, price, types, useEffect, useRef, useState, ago, Empty, Failed, Table, Text, shown, short, where, go } from './lib.js';
import { useLive } from './live.js';

const { d3, topojson } = globalThis;
const cell = 18; // pixels: offers in one cell of the screen are one cluster

let world; // read once, by the first map

const drawn = 4096; // scale of the shapes: they are projected once, and every movement only transforms them

function loadWorld() {
  world ??= fetch('vendor/countries-110m.json').then(a => a.json()).then(w => {
    const path = d3.geoPath(d3.geoEqualEarth().scale(drawn).translate([0, 0]).precision(1)).digits(1);
    const shape = geometry => new Path2D(path(geometry));
    return {
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
      if (!k) cells.set(key, k = { x: 0, y: 0, offers: [], kinds: {} });
      k.x += x;
      k.y += y;
      k.offers.push(o);
      k.kinds[o.type] = (k.kinds[o.type] || 0) + 1;
    }
    this.clusters = [...cells.values()];
    for (const k of this.clusters) {
      k.x /= k.offers.length;
      k.y /= k.offers.length;
      k.r = k.offers.length === 1 ? 4.5 : Math.min(16, 6 + 2.2 * Math.log2(k.offers.length) / 1.6);
    }
  }

  drawCluster(k, rim) {
    const c = this.context;
    let from = -Math.PI / 2;
    for (const [type, n] of Object.entries(k.kinds)) {
      const to = from + 2 * Math.PI * n / k.offers.length;
      c.beginPath();
      c.moveTo(k.x, k.y);
      c.arc(k.x, k.y, k.r, from, to);
      c.fillStyle = colour(type);
      c.fill();
      from = to;
    }
    c.beginPath();
    c.arc(k.x, k.y, k.r, 0, 2 * Math.PI);
    c.strokeStyle = rim;
    c.lineWidth = 1.2;
    c.stroke();
    if (k.offers.length > 1 && k.r > 8) {
      c.fillStyle = '#fff';
      c.font = '600 10px system-ui, sans-serif';
      c.textAlign = 'center';
      c.textBaseline = 'middle';
      c.fillText(k.offers.length > 999 ? `${Math.round(k.offers.length / 1000)}k` : k.offers.length, k.x, k.y + 0.5);
    }
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

// World is the canvas with its controls. onPick gets the offers of a cluster.
export function World({ offers, disc, onPick, label }) {
  const canvas = useRef(null), chart = useRef(null), latest = useRef({});
  const [hover, setHover] = useState(null);
  latest.current = { offers, disc };
  const due = useRef(false);
  const redraw = () => { // once in a frame, however much moves in it
    if (due.current) return;
    due.current = true;
    requestAnimationFrame(async () => {
      const shapes = await loadWorld(), c = chart.current;
      due.current = false;
      if (c && c.width) c.draw(shapes, latest.current.offers, latest.current.disc);
    });
  };
  useEffect(() => {
    chart.current = new Chart(canvas.current);
    const watch = new ResizeObserver(() => { chart.current.resize(); redraw(); });
    watch.observe(canvas.current);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', redraw);
    const wheel = e => { e.preventDefault(); chart.current.zoomBy(e.deltaY < 0 ? 1.25 : 0.8, e.offsetX, e.offsetY); redraw(); };
    canvas.current.addEventListener('wheel', wheel, { passive: false });
    const held = canvas.current;
    return () => { watch.disconnect(); dark.removeEventListener('change', redraw); held.removeEventListener('wheel', wheel); chart.current = null; };
  }, []);
  useEffect(() => { redraw(); });
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
    <canvas ref=${canvas} tabindex="0" role="img" aria-label=${label} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${() => setHover(null)} onKeyDown=${key}></canvas>
    <div class="zoom"><button type="button" aria-label="Zoom in" onClick=${() => act('zoomBy', 1.6)}>+</button><button type="button" aria-label="Zoom out" onClick=${() => act('zoomBy', 1 / 1.6)}>−</button></div>
    ${hover && html`<div class="tip" style=${{ left: `${hover.x}px`, top: `${hover.y}px` }}>
      ${hover.offers.length === 1 ? html`<b><${Text} most=${40}>${hover.offers[0].name || hover.offers[0].id}<//></b><span>${price(hover.offers[0])}</span>` : html`<b>${hover.offers.length} offers</b><span>click to list</span>`}
    </div>`}
  </div>`;
}

// Why shows how an offer got its score: each part with its share, as the peer explains it.
const Why = ({ parts }) => parts?.length > 0 && html`<h4>Why this place in the list</h4><ul class="why">${parts.map(line => {
  const part = /^(.+?) ([\d.]+) of ([\d.]+): (.*)$/.exec(line);
  return part ? html`<li><span>${shown(part[1], 30)}</span><meter min="0" max=${part[3]} value=${part[2]} aria-label=${part[1]}></meter>
    <span class="number">${+part[2]} of ${+part[3]}</span><span class="quiet">${shown(part[4], 120)}</span></li>` : html`<li>${shown(line, 160)}</li>`;
})}</ul>`;

// Offer shows the whole record of an offer, as its provider signed it, beside what peers measured.
export function Offer({ offer, onClose }) {
  const [state, set] = useState({});
  useEffect(() => {
    set({});
    call('GET', `/v1/discovery/resolve?key=${encodeURIComponent(offer.key)}`).then(record => set({ record }), error => set({ error }));
  }, [offer.key]);
  const r = state.record;
  const claims = Object.entries(r?.capabilities || {}).flatMap(([kind, block]) => Object.entries(block).map(([k, v]) => [`${kind} ${k.replaceAll('_', ' ')}`, typeof v === 'object' ? JSON.stringify(v) : v]));
  const rows = [
    ['type', [offer.type, offer.subtype].filter(Boolean).join(' / ')], ['price', price(offer)],
    ['place', [offer.city, offer.country].filter(Boolean).join(', ') || '–'], ['provider', offer.provider_id],
    ['endpoints', (r?.metadata?.endpoints || []).join(' ')], ...claims,
    ['claimed health', r?.health ? `${r.health.status || 'UNKNOWN'}, ${r.health.uptime_percent ?? '–'} % uptime, ${r.health.response_time_ms ?? '–'} ms` : '–'],
    ['measured', offer.measured ? `${offer.measured.state}${offer.measured.round_trip_ms ? `, ${offer.measured.round_trip_ms.toFixed(1)} ms` : ''} (by ${offer.measured.by || 'self'})` : 'search shows what peers measured'],
    ['signed', r ? `Ed25519, verified by this peer; version ${r.sequence}` : '…'],
    ['age', `${ago(offer.updated_at)}, valid until ${new Date(offer.expires_at).toLocaleString()}`],
  ];
  return html`<section class="panel" aria-label="Offer"><header><h3><${Text} most=${60}>${offer.name || offer.id}<//></h3><button type="button" onClick=${onClose} aria-label="Close">×</button></header>
    <${Failed} error=${state.error} />
    <dl>${rows.filter(([, v]) => v !== '' && v !== undefined).map(([k, v]) => html`<dt>${shown(k, 40)}</dt><dd><${Text} most=${120}>${v}<//></dd>`)}</dl><${Why} parts=${offer.parts} /></section>`;
}

export const Legend = ({ offers }) => {
  const counts = {};
  for (const o of offers) counts[o.type] = (counts[o.type] || 0) + 1;
  const rest = Object.keys(counts).filter(t => !types.includes(t));
  return html`<ul class="legend">${[...types, ...rest].filter(t => counts[t]).map(t => html`<li><i style=${{ background: colour(t) }}></i>${shown(t, 20)} <b>${counts[t]}</b></li>`)}</ul>`;
};

export const OfferRow = ({ offer, onPick }) => html`<tr>
  <td><button type="button" class="link" onClick=${() => onPick([offer])}><${Text} most=${40}>${offer.name || offer.id}<//></button></td>
  <td><i class="dot" style=${{ background: colour(offer.type) }}></i>${shown(offer.type, 16)}</td><td class="number">${price(offer)}</td>
  <td><${Text} most=${30}>${[offer.city, offer.country].filter(Boolean).join(', ') || '–'}<//></td>
  ${'distance_km' in offer && html`<td class="number">${offer.distance_km === undefined ? '–' : `${offer.distance_km.toFixed(0)} km`}</td><td class="number">${offer.score?.toFixed(1) ?? '–'}</td>`}
  <td><code title=${offer.provider_id}>${short(offer.provider_id)}</code></td></tr>`;

export const offerHead = ['offer', 'type', 'price', 'place', 'provider'];

export function MapView() {
  const { offers } = useLive();
  const [picked, pick] = useState(null);
  useEffect(() => { loadWorld(); }, []); // while the offers are on their way
  const { values } = where();
  const only = values.get('type');
  const list = [...offers.values()].filter(o => !only || o.type === only);
  const choose = type => go('map', type ? new URLSearchParams({ type }) : undefined);
  if (offers.size === 0) {
    return html`<h2>Map of offers</h2><${Empty} title="No offers yet" needs="admin" command="blackholed offer register -f offer.yaml">Announce one at this peer, or join a network whose peers have some.<//>`;
  }
  return html`<div class="heading"><h2>Map of offers</h2><label>type <select name="type" value=${only || ''} onChange=${e => choose(e.target.value)}><option value="">all</option>${types.map(t => html`<option>${t}</option>`)}</select></label><${Legend} offers=${list} /></div>
    <${World} offers=${list} onPick=${pick} label=${`World map with ${list.length} offers. The table below lists them. Arrow keys move, plus and minus zoom.`} />
    ${picked && picked.length === 1 && html`<${Offer} offer=${picked[0]} onClose=${() => pick(null)} />`}
    <h3>${picked?.length > 1 ? `${picked.length} offers here` : `${list.length} offers`}</h3>
    <${Table} label="Offers" head=${offerHead} rows=${(picked?.length > 1 ? picked : list).slice(0, 50).map(o => html`<${OfferRow} key=${o.key} offer=${o} onPick=${pick} />`)} />
    ${list.length > 50 && html`<p class="quiet">The first 50; search filters all of them.</p>`}`;
}
