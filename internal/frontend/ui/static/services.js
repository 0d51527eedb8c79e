// Services with their health, and the instances of one service.

import { call, html, mark, mayChange, span, useCall, useEffect, useState, Badge, Command, Elsewhere, Empty, Failed, Heading, NotLoaded, Table, Text, ago, cli, dnsLines, quote, shown, short, where } from './lib.js';
import { nameOfPeer, peopled, staleFor, useLive } from './live.js';

const order = ['UP', 'STARTING', 'UNKNOWN', 'UNHEALTHY', 'DOWN', 'OUT_OF_SERVICE'];

export const Bar = ({ counts, total }) => html`<div class="bar" role="img" aria-label=${order.filter(s => counts[s]).map(s => `${counts[s]} ${s}`).join(', ')}>
  ${order.filter(s => counts[s]).map(s => html`<i class=${s} style=${{ width: `${100 * counts[s] / total}%` }}></i>`)}</div>`;

export function grouped(services) {
  const all = new Map();
  for (const i of services.values()) {
    const s = all.get(i.service) || { name: i.service, counts: {}, total: 0 };
    s.counts[i.health] = (s.counts[i.health] || 0) + 1;
    s.total++;
    all.set(i.service, s);
  }
  return [...all.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

// What ended within the last hour, and why. It has no watch.
function Removed({ service }) {
  const { services } = useLive();
  const { value } = useCall(`/v1/removed${service ? `?service=${encodeURIComponent(service)}` : ''}`, [services.size], 5000);
  const list = value?.removed || [];
  return list.length > 0 && html`<h2>Ended within the last hour</h2>
    <${Table} label="Ended instances" head=${['instance', ['was'], 'ended', 'cause']} rows=${list.slice(0, 20).map(i => html`<tr key=${`${i.service}/${i.id}`}>
      <td class="wraps"><${Text} most=${40}>${service ? i.id : `${i.service} ${i.id}`}<//></td><td class="extra"><${Badge}>${i.health}<//></td><td>${ago(i.removed_at)}</td>
      <td class="wraps"><${Text} most=${200}>${peopled(i.cause)}${i.last_check?.cause ? `; last check: ${ended(i.last_check)}` : ''}<//></td></tr>`)} />
    ${list.length > 20 && html`<p>and ${list.length - 20} more</p>`}`;
}

// Old says how old this list is, while the group tells nothing new.
const Old = () => staleFor() > 0 && html`<p class="banner wait" role="status">This is a copy, ${span(staleFor())} old: this peer has no contact to the group. What is UP here may be down.</p>`;

export function ServicesView() {
  const { services, loaded } = useLive();
  const chosen = where().values.get('service');
  if (chosen) return html`<${Service} name=${chosen} />`;
  const list = grouped(services);
  return html`<${Heading} title="Services">Applications of this network with their instances. Choose one to see why an instance is not UP.<//>
    <${Old} />
    ${!loaded.has('services') ? html`<${NotLoaded} />` : list.length === 0 ? html`<${Empty} title="No services yet" needs="service" command=${cli('instance register web --port 8080 --host 127.0.0.1')}>Register the first instance of a service.<//>` : html`
    <${Table} label="Services" head=${['service', 'health', 'up', 'not up']} rows=${list.map(s => html`<tr key=${s.name}>
      <td><a href=${`#/services?service=${encodeURIComponent(s.name)}`}><${Text} most=${40}>${s.name}<//></a></td>
      <td class="wide"><${Bar} ...${s} /></td><td class="number">${s.counts.UP || 0} of ${s.total}</td>
      <td class="wraps">${order.slice(1).filter(status => s.counts[status]).map(status => html`<${Badge} tone=${status}>${s.counts[status]} ${status}<//> `)}${s.counts.UP === s.total && '–'}</td></tr>`)} />`}
    <${Removed} />
    <${Elsewhere} commands=${[cli('service ls'), `curl ${location.origin}/v1/services`]} />`;
}

function Service({ name }) {
  const { services, loaded } = useLive();
  const named = where().values.get('instance');
  const [open, setOpen] = useState(named);
  useEffect(() => setOpen(named), [named]);
  const [error, fail] = useState(null);
  const list = [...services.values()].filter(i => i.service === name).sort((a, b) => (a.id < b.id ? -1 : 1));
  const may = mayChange(name), zoned = list.some(i => i.metadata?.zone), versioned = list.some(i => i.metadata?.version);
  const drained = i => i.health === 'OUT_OF_SERVICE';
  const turn = async i => {
    fail(null);
    try {
      await call('PUT', `/v1/services/${encodeURIComponent(name)}/instances/${encodeURIComponent(i.id)}/status`, { status: drained(i) ? 'UNKNOWN' : 'OUT_OF_SERVICE' });
    } catch (e) { fail(e); }
  };
  return html`<p class="back"><a href="#/services">← all services</a></p><${Heading} title=${html`<${Text} most=${60}>${name}<//>`}>Choose an instance to see its last checks.${may && ' Drain takes an instance out of service until you undo it.'}<//><${Old} /><${Failed} error=${error} />
    ${!loaded.has('services') ? html`<${NotLoaded} />` : list.length === 0 ? html`<${Empty} title="No instances" needs="service" command=${cli(`instance register ${quote(name)} --host 127.0.0.1 --port 8080`)}>They may have ended. Register one.<//>` : html`
    <${Table} label=${`Instances of ${shown(name)}`} head=${['instance', 'status', ['address'], zoned && ['zone'], versioned && ['version'], ' ']} rows=${list.map(i => html`<tr key=${i.id} ...${mark('instance', i.id)}>
      <td><button type="button" class="link" aria-expanded=${open === i.id} onClick=${() => setOpen(open === i.id ? null : i.id)}><${Text} most=${36}>${i.id}<//></button></td>
      <td><${Badge}>${i.health}<//></td><td class="extra"><${Text} most=${40}>${addressOf(i)}<//></td>
      ${zoned && html`<td class="extra"><${Text} most=${20}>${i.metadata?.zone || '–'}<//></td>`}${versioned && html`<td class="extra"><${Text} most=${16}>${i.metadata?.version || '–'}<//></td>`}
      <td>${may && html`<button type="button" onClick=${() => turn(i)}>${drained(i) ? 'Undrain' : 'Drain'}</button>`}</td></tr>`)} />
    ${open && services.get(`${name}/${open}`) && html`<${Instance} service=${name} id=${open} />`}
    <${Elsewhere} commands=${[cli(`instance show ${quote(name)}`), ...dnsLines(name), `curl ${quote(`${location.origin}/v1/services/${encodeURIComponent(name)}/instances?health=any`)}`]} />`}
    <${Removed} service=${name} />`;
}

const hostPort = i => (i.port ? `${i.host.includes(':') ? `[${i.host}]` : i.host}:${i.port}` : i.host);

const addressOf = i => (i.host ? hostPort(i) : Object.values(i.interfaces || {})[0] || '–');

const ended = c => (c.passing ? c.state : `${c.state}: ${c.cause || 'no cause'}`);

const nameAndID = peer => (peer ? `${nameOfPeer(peer)} ${peer}`.trim() : undefined);

// checked says how the last check ended. Only the peer that checks knows, and tells operators.
function checked(d, peer) {
  const c = d.last_checks?.[0];
  if (c) return `${ended(c)} (this peer, ${ago(c.at)}, after ${c.took_ms.toFixed(0)} ms)`;
  return d.health_check ? `known to ${peer ? `peer ${nameOfPeer(peer) || short(peer)}` : 'its peer'}, for the role admin: see its page` : undefined;
}

function Instance({ service, id }) {
  const live = useLive();
  const { value: d, error } = useCall(`/v1/services/${encodeURIComponent(service)}/instances/${encodeURIComponent(id)}`, [live.services.get(`${service}/${id}`)?.health]);
  if (!d) return html`<${Failed} error=${error} />`;
  const rows = [
    ['status', d.health], ['address', addressOf(d)], ['set by hand', d.override], ['peer', nameAndID(live.services.get(`${service}/${id}`)?.peer)], ['registered', ago(d.registered_at)],
    ['last sign of life', d.last_heartbeat ? ago(d.last_heartbeat) : 'known to its peer alone'], ['unhealthy after', d.unhealthy_after], ['removed after', d.lasting ? `${d.remove_after} without heartbeats, never by its check alone` : d.remove_after],
    ['check', d.health_check ? Object.entries(d.health_check).map(([k, v]) => `${k} ${typeof v === 'object' ? JSON.stringify(v) : v}`).join(', ') : 'none: it needs heartbeats'],
    ['last check', checked(d, live.services.get(`${service}/${id}`)?.peer)],
    ['tags', (d.tags || []).join(', ')], ['description', d.description], ...Object.entries(d.metadata || {}),
  ];
  return html`<section class="panel" aria-label="Instance"><header><h3><${Text} most=${60}>${id}<//></h3></header>
    <dl>${rows.filter(([, v]) => v !== undefined && v !== '').map(([k, v]) => html`<dt><${Text} most=${30}>${k}<//></dt><dd><${Text} most=${200}>${v}<//></dd>`)}</dl>
    ${d.last_checks && html`<h4>Last checks</h4><${Table} label=${`Last checks of ${shown(id)}`} head=${['when', 'status since', 'took', 'endpoint']} rows=${d.last_checks.map(c => html`<tr key=${c.at}>
      <td>${ago(c.at)}</td><td><${Badge}>${c.status}<//></td><td>${c.took_ms.toFixed(0)} ms</td><td><${Text} most=${200}>${ended(c)}<//></td></tr>`)} />`}
    <${Command}>${cli(`instance show ${quote(service)} ${quote(id)}`)}<//></section>`;
}
