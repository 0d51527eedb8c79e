// Figures as people write them, and words that are nearly right. Nothing here knows the page or the peer.

import { cities } from './cities.js';

// plain is a name in lower case without accents.
export const plain = name => String(name).normalize('NFD').replace(/\p{M}/gu, '').replaceAll('ı', 'i').replaceAll('ł', 'l').toLowerCase();

// edits counts the letters to change, add, leave out or swap between two words. Beyond most it counts no further.
export function edits(a, b, most) {
  if (Math.abs(a.length - b.length) > most) return most + 1;
  let older = [], old = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(old[j] + 1, row[j - 1] + 1, old[j - 1] + (a[i - 1] !== b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], older[j - 2] + 1);
    }
    if (Math.min(...row) > most) return most + 1;
    [older, old] = [old, row];
  }
  return old[b.length];
}

// typos is the number of errors that a word may have and still be meant.
export const typos = word => (word.length < 4 ? 0 : word.length < 7 ? 1 : 2);

const mostMeant = 4;

// placeOf reads what a reader wrote for a place: { point } for degrees or a city, with the city's name. A name with an error has
// meant as well, the cities that it may be, the likeliest first. Undefined: no place.
export function placeOf(text) {
  const degrees = /^\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*$/.exec(text);
  if (degrees) return { point: `${degrees[1]},${degrees[2]}` };
  const wanted = plain(text.split(',')[0].trim());
  if (!wanted) return undefined;
  const at = ([name, lat, lon], meant) => ({ point: `${lat},${lon}`, city: name, meant });
  const exact = cities.find(([name]) => plain(name) === wanted) ?? cities.find(([name]) => plain(name).startsWith(`${wanted} `));
  if (exact) return at(exact);
  const near = cities.map(city => [edits(plain(city[0]), wanted, typos(wanted)), city]).filter(([n]) => n <= typos(wanted)).sort((a, b) => a[0] - b[0]);
  const begun = near.length === 0 && wanted.length > 2 ? cities.filter(([name]) => plain(name).startsWith(wanted)) : [];
  const meant = [...near.map(([, city]) => city), ...begun].slice(0, mostMeant);
  return meant.length ? at(meant[0], meant.map(([name]) => name)) : undefined;
}

// decimal is a figure in the unit that leaves at most three digits before the point.
export function decimal(n, unit = '') {
  let step = 0;
  while (Math.abs(n) >= 999.5 && step < 5) { n /= 1000; step++; }
  const prefix = ['', 'k', 'M', 'G', 'T', 'P'][step];
  return `${+n.toPrecision(3)}${prefix || unit ? ' ' : ''}${prefix}${unit}`;
}

// counted is a number of things: 1 peer, 2 peers.
export const counted = (n, one) => `${n} ${one}${n === 1 ? '' : 's'}`;

const cents = new Intl.NumberFormat('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 });

// money is an amount with two decimals, or with two digits if it is smaller than a hundredth.
export function money(n) {
  if (n === 0 || Math.abs(n) >= 0.995) return n === 0 ? '0' : Math.abs(n) < 1e6 ? cents.format(n) : decimal(n);
  if (Math.abs(n) < 1e-6) return n.toPrecision(2);
  return n.toFixed(Math.max(2, 1 - Math.floor(Math.log10(Math.abs(n))))).replace(/(\.\d\d\d*?)0+$/, '$1');
}

const units = { hour: 'h', minute: 'min', second: 's', gb: 'GB', tb: 'TB', mb: 'MB' };

// per is the unit of a price: per-gb-month is /GB·month.
export function per(unit) {
  const parts = /^per-(.+)$/.exec(unit ?? '')?.[1].split(/[-/]/);
  return parts ? `/${parts.map(p => units[p] ?? p).join('·')}` : unit ? ` ${unit}` : '';
}

// quantity is a value of an offer with the unit that its name says; undefined for what nobody stated.
export function quantity(name, value) {
  if (value === 0 || value === '' || value === false || value === undefined || value === null) return undefined;
  if (value === true) return 'yes';
  if (Array.isArray(value)) return value.length ? value.map(v => quantity('', v)).filter(Boolean).join('; ') : undefined;
  if (typeof value === 'object') return Object.entries(value).map(([k, v]) => [k, quantity(k, v)]).filter(([, v]) => v).map(([k, v]) => `${label(k)} ${v}`).join(', ');
  if (typeof value !== 'number') return String(value);
  if (/_space$/.test(name)) return decimal(value, 'B');
  if (/_mb$|^max_object_size$/.test(name)) return decimal(value * 1e6, 'B');
  if (/_gb$/.test(name)) return decimal(value * 1e9, 'B');
  if (/_mbps$/.test(name)) return decimal(value * 1e6, 'bit/s');
  if (/_duration$|_ttl$/.test(name)) return value < 120 ? `${value} s` : value < 7200 ? `${+(value / 60).toFixed(1)} min` : `${+(value / 3600).toFixed(1)} h`;
  return String(value);
}

// label is the name of a field as a word, without the unit that quantity writes.
export const label = name => name.replace(/_(mb|gb|mbps)$/, '').replaceAll('_', ' ').replace(/^cpu\b/, 'CPU').replace(/^gpus\b/, 'GPUs').replace(/^ssl\b/, 'TLS').replace(/^http2\b/, 'HTTP/2');
