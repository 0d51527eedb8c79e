package ui

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/sim/loopback"
)

// peer is a blackholed of its own, built from this tree.
type peer struct {
	t             *testing.T
	program, data string
	http          string
	flags         []string
	stop          func()
}

func startPeer(t *testing.T, flags ...string) *peer {
	if len(flags) == 0 {
		flags = []string{"--grpc", "off"}
	}
	program := filepath.Join(t.TempDir(), "blackholed")
	build := exec.CommandContext(t.Context(), "go", "run", "-tags=lab", "-exec=cp", "../../../cmd/blackholed", program) // "go run" keeps what it has linked
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return runPeer(t, program, flags...)
}

// runPeer starts a peer of a built program.
func runPeer(t *testing.T, program string, flags ...string) *peer {
	p := &peer{t: t, program: program, data: filepath.Join(t.TempDir(), "data"), http: loopback.Free(t), flags: flags}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *peer) start() {
	c := exec.CommandContext(p.t.Context(), p.program, append([]string{"run", "--data", p.data, "--profile", "dev", "--http", p.http,
		"--dns", "off", "--listen", "/ip4/127.0.0.1/tcp/0"}, p.flags...)...)
	c.Stderr = p.t.Output()
	require.NoError(p.t, c.Start())
	p.stop = func() {
		_ = c.Process.Kill()
		_ = c.Wait() // killed
	}
}

func (p *peer) url(hash string) string { return "http://" + p.http + Prefix + hash }

func (p *peer) send(line, body string, kind string) {
	p.t.Helper()
	method, path, _ := strings.Cut(line, " ")
	r, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.http+path, strings.NewReader(body))
	require.NoError(p.t, err)
	r.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(p.t, err)
	resp.Body.Close()
	require.Less(p.t, resp.StatusCode, 300, "%s %s", line, body)
}

func (p *peer) json(line, body string, args ...any) {
	p.t.Helper()
	p.send(line, fmt.Sprintf(body, args...), "application/json")
}

// Bounds of the wait for the start of a peer.
const (
	waitForPeer = 60 * time.Second
	pollEvery   = 100 * time.Millisecond
)

const hostile = `<img src=x onerror=\"document.title='taken'\"> שלום`

// fill gives the peer something of everything.
func (p *peer) fill() {
	offer := `{"id": "%s", "metadata": {"type": "%s", "name": "%s", "version": "1.0.0", "endpoints": ["https://p.example:443"]},
		"capabilities": {%s}, "location": {"latitude": %f, "longitude": %f, "city": "%s", "country": "DE"},
		"pricing": {"base_price": %f, "currency": "USD", "price_unit": "per-gb-month"}}`
	const room = `"storage": {"total_space": 1000000000000, "available_space": 1000000000000}`
	for n, city := range []string{"Berlin", "Paris", "Tokyo", "Dallas", "Lagos", "Sydney"} {
		places := [][2]float64{{52.5, 13.4}, {48.9, 2.4}, {35.7, 139.7}, {32.8, -96.8}, {6.5, 3.4}, {-33.9, 151.2}}
		p.json("POST /v1/discovery/records", offer, "s"+city, "storage", city+" archive", room, places[n][0], places[n][1], city, 0.01*float64(n+1))
	}
	p.json("POST /v1/discovery/records", offer, "evil", "cdn", hostile+strings.Repeat("W", 40), `"cdn": {"bandwidth_mbps": 1000}`, 60.0, 20.0, hostile, 1.0)
	for n := range 4 {
		p.json("POST /v1/services/web/instances", `{"id": "web-%d", "host": "10.0.0.%d", "port": 80, "zone": "eu", "unhealthy_after": "1h", "remove_after": "2h"}`, n, n+1)
	}
	p.json("POST /v1/coordination/leases", `{"id": "7700000000077", "ttl": 300, "application": "backup"}`)
	p.json("POST /v1/coordination/locks/nightly", `{"lease_id": "7700000000077", "metadata": "b24gaG9zdCBh"}`)
	p.send("PUT /v1/coordination/keys/config%2Fcolour", "crimson", "application/octet-stream")
	p.send("PUT /v1/coordination/keys/config%2Fcolour", "blue", "application/octet-stream")
	p.json("PUT /v1/coordination/requirements/three-shops", `{"service": "web", "min": 9}`)
	p.send("PUT /v1/coordination/keys/%E2%80%AEturned", "x", "application/octet-stream") // offers may not turn text around, keys may
}

// shoot keeps a picture, if PAGE_SHOTS names a folder.
func (b *browser) shoot(name string) {
	folder := os.Getenv("PAGE_SHOTS")
	if folder == "" {
		return
	}
	png, err := base64.StdEncoding.DecodeString(b.do("Page.captureScreenshot", map[string]any{"format": "png"})["data"].(string))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(folder, name+".png"), png, 0o600))
}

// TestViews plays the page in a real browser against a real peer: each view, live changes, narrow and dark, hostile
// texts, and a peer that restarts.
func TestViews(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p := startPeer(t, "--grpc", loopback.Free(t), "--dns", loopback.Free(t))
	b.ready(p)
	run := func(name string, play func()) {
		t.Run(name, func(t *testing.T) {
			before, owner := b.t, p.t
			b.t, p.t = t, t
			defer func() { b.t, p.t = before, owner }()
			play()
		})
	}

	run("empty", func() {
		for hash, want := range map[string]string{
			"overview": "What to do first", "map": "No offers yet", "search": "Ask for something", "services": "No services yet", "locks": "Nobody holds a lock", "peers": "Alone so far",
			"grants": "No grants", "keys": "No keys", "names": "No services yet", "requirements": "No requirements", "timeline": "this peer started",
		} {
			b.visit(p.url("#/" + hash))
			b.text(want)
			b.until("document.querySelectorAll('.command').length > 0")
		}
		b.visit(p.url("#/overview"))
		b.until(`[...document.querySelectorAll('.start code')].map(e => e.textContent.split(' ')[1]).join() === 'invite,instance,sell'`)
		b.until("!document.querySelector('.world')") // no blank map
		for _, dark := range []bool{false, true} {
			b.dark(dark)
			b.size(390, 800)
			b.until("document.documentElement.scrollWidth <= 390")
			b.shoot(fmt.Sprint("empty-narrow-", dark))
			b.size(1440, 900)
			b.shoot(fmt.Sprint("empty-dark-", dark))
		}
		b.dark(false)
		b.clean()
	})
	p.fill()
	for hash, wants := range map[string][]string{
		"overview": {"Nobody else finds the 7 offers of this peer", "1 peer ·", "1 voter, none may fail", "1 service, all UP", "7 offers", "1 lock held", "Recent events", "network dev"},
		"map":      {"7 offers", "Berlin archive", "complete"},
		"search?type=storage&near=Berlin&radius_km=1500": {"2 of 2 offers", "complete", "blackholed offer find", "curl"},
		"services":             {"web", "4"},
		"services?service=web": {"web-3", "UP", "Drain"},
		"locks":                {"nightly", "on host a", "backup at", "18843138f1385369"},
		"group":                {"leader", "1 of 1 active"},
		"peers":                {"this peer", "reach"},
		"keys":                 {"config", "colour"},
		"names?service=web":    {"web.service.blackhole", "10.0.0.1", "dig"},
		"requirements":         {"three-shops", "insufficient nodes", "9"},
		"figures":              {"resident memory"},
	} {
		name, _, _ := strings.Cut(hash, "?")
		run(hash, func() {
			b.visit(p.url("#/" + hash))
			for _, want := range wants {
				b.text(want)
			}
			b.shoot(name)
			for _, dark := range []bool{false, true} {
				b.dark(dark)
				b.size(390, 800)
				b.until("document.documentElement.scrollWidth <= 390")
				b.shoot(fmt.Sprint(name, "-narrow-", dark))
				b.size(1440, 900)
				b.shoot(fmt.Sprint(name, "-dark-", dark))
			}
			b.dark(false)
			b.playsCommands(p)
			b.clean()
		})
	}
	run("palette", func() { b.playsPalette(p) })
	run("near", func() { b.playsNear(p) })
	run("details", func() { b.playsDetails(p) })
	run("live", func() { b.playsLive(p) })
	run("hostile", func() { b.playsHostile(p) })
	run("keyboard", func() { b.playsKeyboard(p) })
	run("newcomer", func() { b.playsNewcomer(p) })
	run("tabs", func() { b.playsTabs(p) })
	run("grants", func() { b.playsGrants(p) })
	run("restart", func() { b.playsRestart(p) })
}

// playsCommands runs each command line that the view prints, as a reader would paste it into a shell.
func (b *browser) playsCommands(p *peer) {
	b.t.Helper()
	for _, line := range b.eval("[...document.querySelectorAll('.command code')].map(e => e.textContent)").([]any) {
		line := line.(string)
		if strings.HasPrefix(line, "q, err") { // Go, not a shell
			continue
		}
		program, rest, _ := strings.Cut(line, " ")
		switch program {
		case "curl":
			if strings.HasPrefix(rest, "-N ") { // an answer without end
				continue
			}
			resp, err := http.Get(strings.Trim(rest, "'"))
			require.NoError(b.t, err, line)
			resp.Body.Close()
			require.Equal(b.t, http.StatusOK, resp.StatusCode, line)
		case "blackholed":
			if strings.HasPrefix(rest, "events") || strings.HasPrefix(rest, "invite") { // one has no end, one reads the directory of the peer
				continue
			}
			out, err := exec.CommandContext(b.t.Context(), "sh", "-c", p.program+" "+rest).CombinedOutput()
			require.NoError(b.t, err, "%s: %s", line, out)
		case "dig":
			require.Contains(b.t, rest, "@127.0.0.1 -p ", line)
		default:
			require.Fail(b.t, "an unknown command", line)
		}
	}
}

// ready waits for the peer and opens its page.
func (b *browser) ready(p *peer) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		resp, err := http.Get(p.url(""))
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	}, waitForPeer, pollEvery)
	b.visit(p.url(""))
	b.text("live")
}

// playsDetails: an offer of an answer says why it is there, and a key shows its earlier values.
func (b *browser) playsDetails(p *peer) {
	b.visit(p.url("#/search?type=storage&near=Berlin&radius_km=1500"))
	b.text("Berlin archive")
	b.text("query.ParseValues")
	b.press("td button", "Berlin archive")
	b.text("What peers measured earns points")
	b.until("document.querySelectorAll('.why meter').length > 2")
	b.visit(p.url("#/keys"))
	b.text("colour")
	b.press(".tree button", "colour")
	b.text("Earlier values")
	b.press("button", "Earlier values")
	b.text("crimson")
	b.clean()
}

// redraw draws the page again, as each live change does.
func (b *browser) redraw() {
	b.t.Helper()
	b.eval("new Promise(drawn => { dispatchEvent(new HashChangeEvent('hashchange')); setTimeout(() => drawn(true), 50) })")
}

// playsLive: what others do appears without a reload, and what the reader does reaches the peer.
func (b *browser) playsLive(p *peer) {
	b.visit(p.url("#/services?service=web"))
	b.text("web-3")
	p.json("POST /v1/services/web/instances", `{"id": "web-new", "host": "10.0.0.9", "port": 80, "unhealthy_after": "1h", "remove_after": "2h"}`)
	b.text("web-new")
	b.press("button", "Drain")
	b.text("OUT_OF_SERVICE")
	b.text("Undrain")
	p.json("POST /v1/services/web/instances", `{"id": "web-gone", "host": "10.0.0.9", "port": 80}`)
	p.json("DELETE /v1/services/web/instances/web-gone", "")
	b.text("Ended within the last hour")
	b.text("web-gone")
	b.eval("location.hash = '#/timeline'")
	b.text("web/web-new")
	b.eval("document.querySelector('[name=text]').value = 'web-ne'") // a reader types while the page is drawn again
	b.redraw()
	require.Equal(b.t, "web-ne", b.eval("document.querySelector('[name=text]').value"))
	b.visit(p.url("#/names"))
	b.press("td a", "web.service")
	b.text("10.0.0.9")
	b.clean()
}

// playsHostile: a text of a stranger is text, and turns nothing around.
func (b *browser) playsHostile(p *peer) {
	b.visit(p.url("#/map?type=cdn"))
	b.text("<img src=x")
	require.Equal(b.t, 0.0, b.eval("document.querySelectorAll('img').length"))
	require.NotEqual(b.t, "taken", b.eval("document.title"))
	b.until("document.querySelectorAll('td bdi').length > 0")
	b.until("document.documentElement.scrollWidth <= innerWidth")
	b.visit(p.url("#/keys"))
	b.text("turned")
	require.Equal(b.t, false, b.eval(`document.body.innerHTML.includes('\u202e')`))
	b.clean()
}

// playsKeyboard: the first tabs lead to the content and through the views.
func (b *browser) playsKeyboard(p *peer) {
	b.visit("about:blank") // tabs begin where the focus was last
	b.visit(p.url("#/map"))
	b.text("Berlin archive")
	b.eval("document.activeElement.blur()")
	b.key("Tab")
	b.until("document.activeElement.textContent === 'Skip to the content'")
	const links = 8 // five groups, the palette, then Map and Search
	for range links {
		if b.key("Tab"); b.eval("document.activeElement.textContent") == "Search" {
			break
		}
	}
	b.until("document.activeElement.textContent === 'Search'")
	b.key("Enter")
	b.text("Ask for something")
	b.visit(p.url("#/map"))
	b.until("document.querySelector('canvas').getAttribute('aria-label').includes('offers')")

	b.visit(p.url("#/services?service=web"))
	b.text("web-3")
	drained := b.eval(drainedInstances).(float64)
	for range 60 {
		if b.key("Tab"); b.eval("document.activeElement.textContent") == "Drain" {
			break
		}
	}
	b.key("Enter")
	b.until(fmt.Sprint(drainedInstances, " === ", drained+1))
	b.clean()
}

const drainedInstances = "[...document.querySelectorAll('.badge')].filter(b => b.textContent === 'OUT_OF_SERVICE').length"

// playsGrants: what another peer took of this one, and this one of the other, with the bytes that passed.
func (b *browser) playsGrants(p *peer) {
	other := runPeer(p.t, p.program, "--grpc", "off", "--bootstrap", p.status(p.t).Listen[0])
	sold := func(of *peer, id string) (key string) {
		of.json("POST /v1/discovery/records", `{"id": %q, "metadata": {"type": "tool", "name": "a tool", "version": "1.0.0", "access": "peer", "stock": {"unit": "slot", "total": 4}}}`, id)
		of.json("PUT /v1/trade/served/"+id, `{"address": %q}`, of.http)
		var own struct{ Records []struct{ ID, Key string } }
		of.get("/v1/discovery/records", &own)
		for _, r := range own.Records {
			if r.ID == id {
				key = r.Key
			}
		}
		return key
	}
	require.Eventually(b.t, func() bool { // a peer that joins a group grants nothing yet
		s, ok := other.look(p.t)
		return ok && s.Ready && s.Group != nil && slices.Contains([]string{"learner", "voter"}, s.Group.Role)
	}, waitForPeer, pollEvery)
	mine, theirs := sold(p, "mine"), sold(other, "theirs")
	other.json("POST /v1/trade/grants", `{"key": %q}`, mine)
	p.json("POST /v1/trade/grants", `{"key": %q, "ttl_ms": 60000}`, theirs)
	b.visit(p.url("#/grants"))
	for _, want := range []string{"held", "theirs", "1 unit", "stock", "3 of 4 slot free", p.http, "given", "1 slot", "active", "0 B ↑ 0 B ↓"} {
		b.text(want)
	}
	var all struct{ Given []struct{ Token string } }
	p.get("/v1/trade/grants", &all)
	p.json("POST /v1/trade/given/"+all.Given[0].Token+"/revoke", `{"reason": "<img src=x>"}`)
	b.text("revoked")
	b.text("<img src=x>")
	b.finds("mine", "grant")
	b.until("document.querySelector('tr.chosen').textContent.includes('mine')")
	b.text("4 of 4 slot free")
	b.size(390, 800)
	b.until("document.documentElement.scrollWidth <= 390")
	b.size(1440, 900)
	b.shoot("grants")
	b.playsCommands(p)
	b.visit(p.url("#/timeline"))
	b.text("1 unit of mine granted to")
	b.text("1 unit of theirs taken from")
	b.clean()
}

func (p *peer) get(path string, into any) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.http + path)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(into))
}

// playsTabs: a second tab of the same browser is as live as the first, and each sees what the other does.
func (b *browser) playsTabs(p *peer) {
	b.visit(p.url("#/services?service=web"))
	b.text("web-3")
	drained := b.eval(drainedInstances).(float64)
	first := b.session
	b.attach()
	b.visit(p.url("#/services?service=web"))
	b.text("web-3")
	b.press("button", "Drain")
	b.until(fmt.Sprint(drainedInstances, " === ", drained+1))
	b.session = first
	b.do("Page.bringToFront", nil) // a hidden page rests
	b.until(fmt.Sprint(drainedInstances, " === ", drained+1))
	b.clean()
}

// playsNewcomer: the three questions of somebody who has read nothing. Each is answered within a few clicks from the
// first view.
func (b *browser) playsNewcomer(p *peer) {
	for n, place := range [][2]float64{{48.9, 2.4}, {52.4, 13.1}} {
		p.json("POST /v1/discovery/records", `{"id": "gpu-%d", "metadata": {"type": "compute", "name": "GPU box %d", "version": "1.0.0", "endpoints": ["https://p.example:443"]},
			"capabilities": {"compute": {"cpu_cores": 8, "memory_mb": 64000, "gpus": [{"model": "H100", "memory_mb": 80000, "compute_capability": 90}]}},
			"location": {"latitude": %f, "longitude": %f}, "pricing": {"base_price": 1.5, "currency": "USDC", "price_unit": "per-hour"}}`, n, n, place[0], place[1])
	}
	p.json("POST /v1/services/pay/instances", `{"id": "pay-1", "host": "127.0.0.1", "port": 1, "health_check": {"type": "TCP", "interval": "1s", "timeout": "500ms", "unhealthy_threshold": 1}}`)

	b.visit(p.url("")) // the nearest GPU under a price
	b.press("nav a", "Market")
	b.press("nav a", "Search")
	b.text("Ask for something")
	b.eval(`document.querySelector('[name=near]').value = 'Berlin', document.querySelector('[name=max_price]').value = '2', document.querySelector('[name=require_gpu]').checked = true`)
	b.redraw()
	b.press("button", "Search")
	b.until("document.querySelector('td button').textContent === 'GPU box 1'")
	b.text("1x H100 80 GB, 8 cores")
	b.press("th button", "distance")
	b.press("th button", "distance") // the farthest first
	b.until("document.querySelector('td button').textContent === 'GPU box 0' && document.querySelector('th[aria-sort=descending]').textContent.startsWith('distance')")
	b.eval("document.querySelector('[name=max_price]').value = '1'") // nothing: the peer says how it understood the price
	b.press("button", "Search")
	b.text("Nothing matches")
	b.text("prices compared in USDC per-hour")
	b.text("2 offers of type compute, none passes; left out: 2 by price")
	b.shoot("newcomer-search")

	b.press("nav a", "Coordination") // the holder of a lock
	b.text("nightly")
	b.text("on host a")

	b.press("nav a", "Apps") // why a service is unhealthy
	b.press("td a", "pay")
	b.until("[...document.querySelectorAll('.badge')].some(e => e.textContent === 'DOWN')")
	b.press("td button", "pay-1")
	b.text("last check")
	b.text("connection refused")
	b.text("Last checks")
	b.until("document.querySelectorAll('[aria-label=\"Last checks of pay-1\"] tbody tr').length >= 1")
	b.shoot("newcomer-service")
	b.clean()
}

// playsRestart: the page says that the peer is away, and goes on by itself.
func (b *browser) playsRestart(p *peer) {
	b.visit(p.url("#/map"))
	b.text("9 offers")
	p.stop()
	b.text("No contact with this peer for")
	for _, view := range []string{"overview", "services", "locks", "requirements", "group", "peers", "keys", "names?service=web", "figures", "map"} {
		b.eval("location.hash = '#/" + view + "'")
		b.redraw()
		b.text("No contact with this peer for") // over each view
		b.until("document.querySelector('main.old')")
		b.until("[...document.querySelectorAll('table')].every(t => t.tBodies[0].rows.length > 0)") // no list that looks empty
		b.shoot("lost-" + strings.TrimSuffix(view, "?service=web"))
	}
	b.eval("location.hash = '#/locks'")
	b.text("Not loaded")
	b.eval("location.hash = '#/map'")
	p.start()
	b.until("document.querySelector('.lamp.live')")
	b.text("9 offers")
}

// TestManyPages: a browser opens at most six connections to a peer. A page that nobody looks at keeps none of them.
func TestManyPages(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p := startPeer(t)
	b.ready(p)
	look := func() {
		b.visit(p.url("#/peers"))
		b.text("this peer")
		b.until("document.querySelector('.lamp.live')")
	}
	for range 8 {
		b.visit("about:blank") // the browser keeps the page that it leaves, for the way back
		look()
	}
	for range 7 {
		b.attach()
		look()
	}
}
