// The group and what it holds: locks, leases, keys, members.

import { call, html, useCall, useState, Badge, Command, Elsewhere, Empty, Failed, Heading, NotLoaded, Table, Text, cli, mark, quote, shown, span, textOf, useEffect, where } from './lib.js';
import { useLive, Owner, Peer } from './live.js';

const absent = html`<${Empty} title="No coordination here" command=${cli('status')}>This peer takes no part in a group: see its setting coordination.enabled.<//>`;

// claims lists holders or waiters of a lock.
const Claims = ({ list }) => html`<ul class="plain">${list.map(c => html`<li key=${c.key}><${Owner} id=${c.holder_id} application=${c.application} />
  <span class="quiet">token ${c.fencing_token}${c.mode === 'SHARE_MODE_SHARED' ? ', shared' : ''}${c.permits ? `, 1 of ${c.permits}` : ''}${+c.age_ms ? `, ${span(c.age_ms)}` : ''}</span>
  <span class="quiet extra">lease ${c.key.slice(c.key.lastIndexOf('/') + 1)}</span>
  ${c.metadata && html`<span class="quiet"><${Text} most=${40}>${textOf(c.metadata) ?? c.metadata}<//></span>`}</li>`)}</ul>`;

export function LocksView() {
  const { keysRevision, planes } = useLive();
  const locks = useCall('/v1/coordination/locks?limit=500', [keysRevision], 5000);
  const leases = useCall('/v1/coordination/leases?limit=500', [keysRevision], 5000);
  const listed = locks.value?.locks || [], named = where().values.get('lock');
  const alone = useCall(named && locks.value && !listed.some(l => l.name === named) ? `/v1/coordination/locks?limit=1&prefix=${encodeURIComponent(named)}` : '', [keysRevision]).value?.locks || []; // beyond those that the list has
  if (!planes.includes('coordination')) return html`<h2>Locks and leases</h2>${absent}`;
  const held = [...alone.filter(l => l.name === named && !listed.some(o => o.name === named)), ...listed], granted = leases.value?.leases || [];
  return html`<${Heading} title="Locks">Who holds a lock, and who waits for it. The token grows with each holder: storage refuses an older one.<//><${Failed} error=${locks.error} />
    ${!locks.value ? html`<${NotLoaded} error=${locks.error} />` : held.length === 0 ? html`<${Empty} title="Nobody holds a lock" needs="service" command=${cli('lock hold backups/nightly -- sleep 60')}>A lock appears here while a command or a program holds it.<//>` : html`
    <${Table} label="Locks" head=${['lock', 'held by', 'waiting']} rows=${held.map(l => html`<tr key=${l.name} ...${mark('lock', l.name)}><td><${Text} most=${50}>${l.name}<//></td>
      <td><${Claims} list=${l.holding} /></td><td>${l.waiting.length ? html`<details open=${l.waiting.length < 4}><summary>${l.waiting.length}</summary><${Claims} list=${l.waiting} /></details>` : '–'}</td></tr>`)} />`}
    <${Heading} title="Leases">A lease ends unless its owner renews it, and with it end its locks, keys and registrations.<//><${Failed} error=${leases.error} />
    ${!leases.value ? html`<${NotLoaded} error=${leases.error} />` : granted.length === 0 ? html`<${Empty} title="No leases" needs="service" command=${cli('lease grant --ttl 60s')}>Locks, sessions and registrations live as long as their lease.<//>` : html`
    <${Table} label="Leases" head=${['owner', 'lasts', 'left', ['lease']]} rows=${granted.map(l => html`<tr key=${l.tag} ...${mark('lease', l.tag)}><td><${Owner} id=${l.client_id} application=${l.application} /></td>
      <td class="number">${span(l.granted_ttl_ms)}</td><td class="number">${span(l.remaining_ms)}</td><td class="extra"><code>${l.id === '0' ? l.tag : l.id}</code></td></tr>`)} />`}
    <${Elsewhere} commands=${[cli('lock ls'), `curl ${location.origin}/v1/coordination/locks`]} />`;
}

export function GroupView() {
  const { group, peers, planes, status } = useLive();
  if (!planes.includes('coordination')) return html`<h2>Group</h2>${absent}`;
  if (!group) return html`<h2>Group</h2><${NotLoaded} />`;
  const g = group;
  const members = [...(g.voters || []).map(m => ({ ...m, role: m.peer_id === g.leader ? 'leader' : 'voter' })), ...(g.learners || []).map(m => ({ ...m, role: 'learner' }))];
  const stateOf = m => (m.active ? ['good', 'active'] : !g.missing ? ['bad', 'silent'] : m.peer_id === status?.peer_id ? ['off', 'this peer'] : peers?.has(m.peer_id) ? ['off', 'connected'] : ['bad', 'no contact']); // without a leader each tells what it sees itself
  const alive = (g.voters || []).filter(m => m.active).length;
  return html`<${Heading} title="Group">The peers that agree on locks, leases and keys. A majority of the voters must be active.<//>
    <dl class="cards"><div><dt>leader</dt><dd>${g.leader ? html`<${Peer} id=${g.leader} />` : '–'}</dd></div><div><dt>term</dt><dd>${g.term}</dd></div>
      <div><dt>voters</dt><dd>${g.missing ? `${(g.voters || []).length}, no leader to tell which are active` : `${alive} of ${(g.voters || []).length} active`}</dd></div><div><dt>failures survived now</dt><dd>${g.failures_survived ?? '–'}</dd></div>
      <div><dt>revision</dt><dd>${g.revision}</dd></div><div><dt>this peer</dt><dd>${shown(g.phase, 20)}</dd></div></dl>
    ${members.length === 0 ? html`<${Empty} title="No group yet" command=${cli('group status')}>Founders elect one as soon as a majority of them meet.<//>` : html`
    <${Table} label="Members" head=${['member', 'role', 'state', 'lag', 'silent', ['address']]} rows=${members.map(m => html`<tr key=${m.peer_id}><td><${Peer} id=${m.peer_id} /></td>
      <td>${m.role}</td><td><span class=${`badge ${stateOf(m)[0]}`}>${stateOf(m)[1]}</span></td>
      <td class="number">${m.lag ?? 0}</td><td class="number">${+m.silent_ms ? span(m.silent_ms) : '–'}</td><td class="extra"><${Text} most=${40}>${m.address || '–'}<//></td></tr>`)} />`}
    <${Elsewhere} commands=${[cli('group members'), `curl ${location.origin}/v1/coordination/group`]} />`;
}

const states = { satisfied: 'UP', pending: 'STARTING', insufficient_nodes: 'DOWN' }; // the tones of badges

export function RequirementsView() {
  const { keysRevision, services, planes } = useLive();
  const list = useCall('/v1/coordination/requirements', [keysRevision, services.size], 3000);
  if (!planes.includes('coordination')) return html`<h2>Requirements</h2>${absent}`;
  const all = list.value?.requirements || [];
  const demands = s => Object.entries(s || {}).map(([k, v]) => `${k} ${v}`).join(', ');
  return html`<${Heading} title="Requirements">What programs wait for: so many healthy instances of a service.<//><${Failed} error=${list.error} />
    ${!list.value ? html`<${NotLoaded} error=${list.error} />` : all.length === 0 ? html`<${Empty} title="No requirements" needs="service" command=${cli('service require web=2 -- echo two are up')}>A program that waits for instances of a service leaves its requirement here.<//>` : html`
    <${Table} label="Requirements" head=${['requirement', 'service', 'state', 'available', 'needed', ['where']]} rows=${all.map(r => html`<tr key=${r.name} ...${mark('requirement', r.name)}><td><${Text} most=${40}>${r.name}<//></td>
      <td><a href=${`#/services?service=${encodeURIComponent(r.service)}`}><${Text} most=${30}>${r.service}<//></a></td><td><${Badge} tone=${states[r.state]}>${r.state.replace('_', ' ')}<//></td>
      <td class="number">${r.available}</td><td class="number">${r.needed}</td><td class="extra"><${Text} most=${60}>${r.problem || demands(r.selector) || 'anywhere'}<//></td></tr>`)} />`}
    <${Elsewhere} commands=${[cli('service requirements'), `curl ${location.origin}/v1/coordination/requirements`]} />`;
}

const base64Of = text => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// versionOf is a version of a key with texts and numbers in place of base64 and digits. Bytes that are no text have none.
const versionOf = kv => ({ ...kv, key: textOf(kv.key), key_base64: kv.key, value: textOf(kv.value), value_base64: kv.value, mod_revision: +kv.mod_revision, create_revision: +kv.create_revision });

const mostVersions = 10;

// versions reads the earlier values of a key, newest first, as far as the group keeps them.
async function versions(kv) {
  const list = [];
  for (let at = kv; list.length < mostVersions && at.mod_revision > at.create_revision;) {
    try {
      at = versionOf((await call('GET', `/v1/coordination/keys/${encodeURIComponent(kv.key)}?revision=${at.mod_revision - 1}`)).kvs[0]);
    } catch (error) {
      return { list, end: error.message };
    }
    list.push(at);
  }
  return { list, end: '' };
}

function History({ kv }) {
  const [state, set] = useState(null);
  if (!(kv.mod_revision > kv.create_revision)) return null;
  if (!state) return html`<button type="button" onClick=${() => versions(kv).then(set)}>Earlier values</button>`;
  return html`<h4>Earlier values</h4><ul class="plain">${state.list.map(v => html`<li key=${v.mod_revision}><span class="quiet">revision ${v.mod_revision}</span><${Text} most=${120}>${v.value ?? v.value_base64 ?? ''}<//></li>`)}</ul>
    ${state.end && html`<p class="quiet">${shown(state.end, 160)}</p>`}`;
}

// grow puts keys into a tree by their slashes.
function grow(keys) {
  const root = { kids: new Map(), key: null };
  for (const kv of keys) {
    let at = root;
    for (const part of (kv.key || kv.key_base64 || '').split('/')) {
      if (!at.kids.has(part)) at.kids.set(part, { kids: new Map(), kv: null });
      at = at.kids.get(part);
    }
    at.kv = kv;
  }
  return root;
}

const Branch = ({ node, name, onPick }) => html`<li>${node.kids.size
  ? html`<details open=${node.kids.size < 12}><summary><${Text} most=${50}>${name || '(empty)'}<//> <span class="quiet">${node.kids.size}</span></summary>
    ${node.kv && html`<button type="button" class="link" onClick=${() => onPick(node.kv)}>value</button>`}
    <ul class="tree">${[...node.kids].map(([k, n]) => html`<${Branch} key=${k} node=${n} name=${k} onPick=${onPick} />`)}</ul></details>`
  : html`<button type="button" class="link" onClick=${() => onPick(node.kv)}><${Text} most=${50}>${name || '(empty)'}<//></button>`}</li>`;

export function KeysView() {
  const { keysRevision, planes } = useLive();
  const list = useCall('/v1/coordination/keys?prefix=true&limit=500', [keysRevision]);
  const named = where().values.get('key');
  const [picked, pick] = useState(named && { key: named, key_base64: base64Of(named) });
  useEffect(() => pick(named && { key: named, key_base64: base64Of(named) }), [named]);
  if (!planes.includes('coordination')) return html`<h2>Keys</h2>${absent}`;
  const keys = (list.value?.kvs || []).map(versionOf).filter(kv => !/^(directory|requirements-status)\//.test(kv.key || ''));
  const listed = picked && keys.find(kv => kv.key_base64 === picked.key_base64);
  const alone = useCall(picked?.key && list.value && !listed ? `/v1/coordination/keys/${encodeURIComponent(picked.key)}` : '', [keysRevision]).value?.kvs?.[0]; // beyond those that the list has
  const current = listed || (alone?.key === picked?.key_base64 && alone ? versionOf(alone) : undefined);
  return html`<${Heading} title="Keys">Small values that programs share. Locks and requirements are keys as well.<//><${Failed} error=${list.error} />
    ${!list.value ? html`<${NotLoaded} error=${list.error} />` : keys.length === 0 ? html`<${Empty} title="No keys" needs="service" command=${cli('kv put config/colour blue')}>Programs keep small shared values here.<//>` : html`
    <div class="split"><ul class="tree card">${[...grow(keys).kids].map(([k, n]) => html`<${Branch} key=${k} node=${n} name=${k} onPick=${pick} />`)}</ul>
    ${!picked && html`<p class="panel quiet">Choose a key to see its value and its earlier values.</p>`}
    ${picked && html`<section class="panel" aria-label="Key"><h3><${Text} most=${80}>${picked.key || picked.key_base64}<//></h3>
      ${current ? html`<pre>${shown(current.value ?? current.value_base64 ?? '', 4000)}</pre><p class="quiet">revision ${current.mod_revision}, version ${current.version}, created at ${current.create_revision}${current.lease_tag ? ', bound to a lease of another' : current.lease !== '0' ? `, bound to lease ${current.lease}` : ''}</p>` : html`<p class="quiet">deleted</p>`}
      ${current && current.key && html`<${History} key=${`${current.mod_revision} ${current.key}`} kv=${current} />`}
      <${Command}>${picked.key && cli(`kv get ${quote(picked.key)}`)}<//></section>`}</div>
    <${Elsewhere} commands=${[cli('kv ls'), `curl '${location.origin}/v1/coordination/keys?prefix=true'`]} />`}`;
}
