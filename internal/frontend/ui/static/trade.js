// What this peer took from others, and what others took from it.

import { cli, html, may, useCall, Badge, Elsewhere, Empty, Failed, Heading, NotLoaded, Price, Table, Text, mark, shown, span } from './lib.js';
import { useLive, Peer } from './live.js';
import { decimal } from './words.js';

const idOf = g => g.key.slice(g.key.lastIndexOf('/') + 1);
const stateOf = g => g.state.slice('STATE_'.length).toLowerCase();
const tones = { active: 'UP', held: 'STARTING' };

// Grant is a row; side is how this peer stands to it, unit that of the offer, where it is known.
const Grant = ({ of: g, side, unit = +g.units === 1 ? 'unit' : 'units' }) => html`<tr ...${mark('grant', g.token)}><td>${side}</td><td><${Text} most=${40}>${idOf(g)}<//></td>
  <td><${Peer} id=${side === 'held' ? g.provider_id : g.consumer_id} /></td><td class="number">${g.units} ${shown(unit, 16)}</td>
  <td><${Badge} tone=${tones[stateOf(g)] || 'off'}>${stateOf(g)}<//> ${g.reason && html`<span class="quiet"><${Text} most=${60}>${g.reason}<//></span>`}</td>
  <td class="number">${tones[stateOf(g)] ? span(g.left_ms) : '–'}</td><td class="number">${decimal(+g.sent_bytes, 'B')} ↑ ${decimal(+g.received_bytes, 'B')} ↓</td>
  <td class="number extra"><${Price} of=${g} /></td><td class="extra"><code>${g.token}</code></td></tr>`;

function Grants() {
  const { value, error } = useCall('/v1/trade/grants', [], 3000);
  const { held = [], given = [], stocks = [] } = value || {};
  const of = s => given.filter(g => idOf(g) === s.id);
  const gone = given.filter(g => !stocks.some(s => idOf(g) === s.id)); // their offers
  if (!value) return html`<${Failed} error=${error} /><${NotLoaded} error=${error} />`;
  return html`<${Failed} error=${error} />${held.length + given.length + stocks.length === 0 ? html`<${Empty} title="No grants" needs="service" command=${cli('connect --type compute --gpu --for 1h')}>Nothing is taken or sold here. Connect to an offer of another peer, or sell a local service with --serve HOST:PORT.<//>` : html`
    <${Table} label="Grants" head=${['side', 'offer', 'with', 'units', 'state', 'left', 'bytes', ['price'], ['token']]} rows=${[
      ...held.map(g => html`<${Grant} key=${`${g.provider_id}${g.token}`} of=${g} side="held" />`),
      ...stocks.flatMap(s => [html`<tr key=${s.id}><td>stock</td><td><${Text} most=${40}>${s.id}<//></td><td>${s.serve ? html`<${Text} most=${30}>${s.serve}<//>` : '–'}</td>
        <td class="number">${s.free} of ${s.total} ${shown(s.unit, 16)} free</td><td></td><td></td><td></td><td class="extra"></td><td class="extra"></td></tr>`,
        ...of(s).map(g => html`<${Grant} key=${g.token} of=${g} side="given" unit=${s.unit} />`)]),
      ...gone.map(g => html`<${Grant} key=${g.token} of=${g} side="given" />`),
    ]} />
    <${Elsewhere} commands=${[cli('offer grants'), `curl ${location.origin}/v1/trade/grants`]} />`}`;
}

export function GrantsView() {
  useLive();
  return html`<${Heading} title="Grants">What this peer holds of others, and what it gave of its own stock. Bytes are those that the holder sent ↑ and received ↓.<//>
    ${may('service') ? html`<${Grants} />` : html`<${Empty} title="Grants" needs="service" />`}`;
}
