package ui

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// opensPalette opens the palette by its key and waits for what the peer adds to it.
func (b *browser) opensPalette() {
	b.t.Helper()
	b.until("document.querySelector('.lamp.live')")
	b.key("/")
	b.until("document.querySelector('dialog[open]') && document.activeElement.role === 'combobox'")
}

// types replaces the text of the field with the focus, as a keyboard does.
func (b *browser) types(text string) {
	b.t.Helper()
	b.eval("document.activeElement.select()")
	b.do("Input.insertText", map[string]any{"text": text})
	b.until(fmt.Sprintf("document.activeElement.value === %q", text))
}

// finds asks the palette and chooses the first row of a kind by keys alone.
func (b *browser) finds(question, kind string) {
	b.t.Helper()
	b.eval("document.activeElement.blur()")
	b.opensPalette()
	b.types(question)
	b.until(fmt.Sprintf("[...document.querySelectorAll('.palette .kind')].some(e => e.textContent === %q)", kind))
	for b.eval("document.querySelector('.palette [aria-selected=true] .kind').textContent") != kind {
		before := b.eval("document.activeElement.getAttribute('aria-activedescendant')")
		b.key("ArrowDown")
		b.until(fmt.Sprintf("document.activeElement.getAttribute('aria-activedescendant') !== %q", before))
	}
	b.key("Enter")
	b.until("!document.querySelector('dialog')")
}

// playsPalette: whatever has a name or an id is found by keys alone, and its view shows it.
func (b *browser) playsPalette(p *peer) {
	id := p.status(p.t).PeerID
	for _, find := range []struct{ question, kind, view, shows string }{
		{"nightly", "lock", "locks", "tr.chosen"},
		{"nigthly", "lock", "locks", "tr.chosen"}, // an error is mended
		{"backup", "lease", "locks", "tr.chosen"},
		{"config/colour", "key", "keys", "pre"},
		{"web", "service", "services", "h2"},
		{"web-3", "instance", "services", "tr.chosen"},
		{"three-sho", "requirement", "requirements", "tr.chosen"},
		{id[len(id)-6:], "peer", "peers", ".chosen"},
		{id, "peer", "peers", ".chosen"},
		{"Berlin archive", "offer", "map", ".panel"},
		{"Berlim", "city", "search", ".whole"},
		{"berlim archive", "offer", "map", ".panel"},
		{"figures", "view", "figures", ".hour"},
	} {
		b.visit(p.url("#/overview"))
		b.text("1 lock held")
		b.finds(find.question, find.kind)
		b.until(fmt.Sprintf("location.hash.startsWith('#/%s')", find.view))
		b.until(fmt.Sprintf("document.querySelector(%q)", find.shows))
		b.until("document.activeElement.id === 'content'")
	}
	b.visit(p.url("#/overview"))
	b.text("1 lock held")
	b.eval("document.querySelector('.tile a').focus()")
	b.opensPalette()
	b.shoot("palette")
	b.key("Tab")
	b.until("document.activeElement === document.body || document.querySelector('dialog').contains(document.activeElement)") // it never leads below
	b.eval("document.querySelector('dialog input').focus()")
	b.types("no such thing anywhere")
	b.text("Nothing has such a name or id here")
	b.key("Escape")
	b.until("!document.querySelector('dialog') && document.activeElement === document.querySelector('.tile a')")
	b.visit(p.url("#/timeline?text=x"))
	b.until("document.querySelector('[name=text]')")
	b.eval("document.querySelector('[name=text]').focus()")
	b.key("/") // a letter of a text
	require.Equal(b.t, nil, b.eval("document.querySelector('dialog')"))
	b.clean()
}

// playsNear: a city with an error is meant, and said; a place that nothing is called asks no peer.
func (b *browser) playsNear(p *peer) {
	b.visit(p.url("#/search?type=storage&near=Berlim&radius_km=1500"))
	b.text("No city is called “Berlim”: this is near Berlin")
	b.text("2 of 2 offers")
	b.until("[...document.querySelectorAll('.command code')].every(e => !e.textContent.includes('Berlim'))")
	b.visit(p.url("#/search?type=storage&near=Hambrug"))
	b.text("this is near Hamburg")
	b.visit(p.url("#/search?type=storage&near=San%20Jos&radius_km=9"))
	b.text("this is near San Jose")
	b.visit(p.url("#/search?type=storage&near=qqqqqqqqqq"))
	b.text("Write a city in English, or latitude and longitude")
	b.clean() // a refused question would be an error of the page
}

// TestWords: figures as people write them, and names that are nearly right.
func TestWords(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	b.visit(manyOffers(t, 1))
	b.until("document.querySelector('#content')")
	for call, want := range map[string]any{
		"money(12.4)": "12.40", "money(0)": "0", "money(0.9594)": "0.96", "money(0.999)": "1.00", "money(0.05)": "0.05", "money(0.5)": "0.50", "money(0.0053)": "0.0053",
		"money(12345.678)": "12,345.68", "money(2.5e9)": "2.5 G", "money(3e-9)": "3.0e-9", "money(1)": "1.00", "money(0.1)": "0.10", "money(0.0100)": "0.01",
		"per('per-hour')": "/h", "per('per-gb-month')": "/GB·month", "per('per-gb/month')": "/GB·month", "per('flat')": " flat", "per(undefined)": "",
		"decimal(1200)": "1.2 k", "decimal(999)": "999", "decimal(999.9)": "1 k", "decimal(8e10, 'B')": "80 GB", "decimal(0, 'B')": "0 B", "decimal(-1500)": "-1.5 k",
		"quantity('memory_mb', 64000)": "64 GB", "quantity('available_space', 1e12)": "1 TB", "quantity('bandwidth_mbps', 1000)": "1 Gbit/s", "quantity('max_job_duration', 86400)": "24 h",
		"quantity('encryption_supported', true)": "yes", "quantity('max_job_duration', 0) ?? 'unsaid'": "unsaid", "quantity('gpus', [{ model: 'H100', memory_mb: 80000, compute_capability: 0 }])": "model H100, memory 80 GB",
		"edits('berlin', 'berlim', 2)": 1.0, "edits('hamburg', 'hambrug', 2)": 1.0, "edits('a', 'abcd', 2)": 3.0, "edits('nightly', 'nightly', 0)": 0.0,
		"placeOf('52.5, 13.4').point": "52.5,13.4", "placeOf('münchen') === undefined": true, "placeOf('zürich').city": "Zürich", "placeOf('Zurich, CH').city": "Zürich", "placeOf('Berlin').meant ?? 'as written'": "as written",
		"placeOf('xx') === undefined": true,
	} {
		require.Equal(t, want, b.eval("import('/ui/words.js').then(({ money, per, decimal, quantity, edits, placeOf }) => "+call+")"), call)
	}
}

// TestPaletteBeyond: a key that no list has is found by the begin of its name, and an offer of the network by its key.
func TestPaletteBeyond(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	f, page := fakeOf(t, 2)
	f.now(object{
		"/v1/coordination/requirements": object{"requirements": []object{}},
		"/v1/coordination/keys":         object{"kvs": []object{}},
		"/v1/discovery/resolve":         object{"id": "far", "metadata": object{"name": "far away"}},
	})
	b.visit(page + "#/overview")
	b.opensPalette()
	f.now(object{"/v1/coordination/keys": object{"kvs": []object{{"key": base64.StdEncoding.EncodeToString([]byte("zone/last"))}}}})
	b.types("zone/la")
	b.until("document.querySelector('.palette [aria-selected=true] bdi').textContent === 'zone/last'")
	f.now(object{"/v1/coordination/locks": lockOf("zone/lock", 1, 3)})
	b.types("zone/lo")
	b.until("document.querySelector('.palette [aria-selected=true] bdi').textContent === 'zone/lock'")
	b.types("/blackhole/services/cdn/_/u33dc0/x/far")
	b.until("document.querySelector('.palette [aria-selected=true] bdi').textContent === 'far away'")
	b.clean()
}
