package ui

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

// serious runs the check and returns what is serious or critical, with the elements.
const serious = `axe.run(document).then(r => r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical')
	.map(v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.target.join(' ') + ' ' + (n.any[0]?.message || n.all[0]?.message || '')).join(' | ')))`

// TestAccessible checks every view with axe, light and dark.
func TestAccessible(t *testing.T) {
	long(t)
	t.Parallel()
	axe, err := os.ReadFile("testdata/axe/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Skip("axe is not installed: npm ci --prefix internal/frontend/ui/testdata/axe")
	}
	b := openBrowser(t)
	p := startPeer(t)
	b.ready(p)
	p.fill()
	for hash, want := range map[string]string{
		"overview": "1 lock held", "map": "Berlin archive", "search": "Ask for something", "search?type=storage&near=Berlin&radius_km=1500": "complete",
		"services": "web", "services?service=web": "web-3", "locks": "nightly", "requirements": "three-shops", "group": "leader", "peers": "this peer",
		"timeline": "topic", "keys": "config", "names?service=web": "10.0.0.1", "figures": "resident memory",
	} {
		b.visit("about:blank")
		b.visit(p.url("#/" + hash))
		b.text(want)
		b.eval(string(axe) + "; true")
		for _, dark := range []bool{false, true} {
			b.dark(dark)
			assert.Empty(t, b.eval(serious), "%s, dark %t", hash, dark)
		}
	}
	f, page := fakeOf(t, 60)
	f.losesQuorum()
	for _, view := range []string{"overview", "group", "services", "figures"} {
		b.visit(page + "#/" + view)
		b.text(sentence)
		b.eval(string(axe) + "; true")
		for _, dark := range []bool{false, true} {
			b.dark(dark)
			assert.Empty(t, b.eval(serious), "%s without a quorum, dark %t", view, dark)
		}
	}
	b.opensPalette()
	for _, question := range []string{"web", "nothing is called so"} {
		b.types(question)
		assert.Empty(t, b.eval(serious), "the palette with %s", question)
	}
}
