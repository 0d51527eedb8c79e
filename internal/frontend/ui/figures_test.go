package ui

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
)

// manyOffers is a peer whose watch of offers begins with n offers at random places of the inhabited world.
func manyOffers(b testing.TB, n int) string {
	types := []string{"compute", "storage", "bandwidth", "cdn"}
	random := rand.New(rand.NewPCG(1, 2))
	var watch []byte
	for i := range n {
		watch = fmt.Appendf(watch, "event: added\ndata: {\"record\":{\"key\":\"/blackhole/services/%s/_/u33dc0/12D3KooWJdTMtx9a4br1Zgi66rmD4Ws9MyH885w15puLmJDZxM81/o%d\","+
			"\"id\":\"o%d\",\"provider_id\":\"12D3KooWJdTMtx9a4br1Zgi66rmD4Ws9MyH885w15puLmJDZxM81\",\"metadata\":{\"type\":%q,\"name\":\"offer %d\"},"+
			"\"location\":{\"latitude\":%.4f,\"longitude\":%.4f,\"country\":\"DE\",\"city\":\"Berlin\"},\"pricing\":{\"base_price\":%.4f,\"currency\":\"USD\",\"price_unit\":\"per-hour\"},"+
			"\"sequence\":1,\"updated_at\":\"2026-11-20T12:00:00Z\",\"expires_at\":\"2026-11-21T12:00:00Z\"}}\n\n",
			types[i%4], i, i, types[i%4], i, random.Float64()*110-45, random.Float64()*340-170, random.Float64())
	}
	watch = append(watch, "event: progress\nid: end\ndata: {\"complete\":true}\n\n"...)
	mux := http.NewServeMux()
	mux.Handle(Prefix, Handler())
	for path, events := range map[string][]byte{
		"GET /v1/discovery/watch": watch,
		"GET /v1/events":          []byte("event: open\ndata: {\"planes\":[\"discovery\"],\"role\":\"admin\",\"open\":true}\n\n"),
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(events) // the viewer may leave
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}
	s := httptest.NewServer(mux)
	b.Cleanup(s.Close)
	b.Cleanup(s.CloseClientConnections)
	return s.URL + Prefix
}

// watchFirstView notes, in ms since the page was asked for, when a view was first painted and when the map had all offers.
const watchFirstView = `(() => {
	const seen = globalThis.seen = {};
	const look = () => {
		if (seen.first === undefined && document.querySelector('#content h2')) seen.first = performance.now();
		const shows = [...document.querySelectorAll('#content h3')].some(e => e.textContent === globalThis.wanted);
		if (seen.all === undefined && shows && document.querySelector('.world canvas')?.width) {
			requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => setTimeout(() => { seen.all = performance.now(); })))); // the map is drawn in the frame after its table
			return;
		}
		requestAnimationFrame(look);
	};
	requestAnimationFrame(look);
})()`

// steer presses keys on the map and returns the median and the slowest time from a key to the end of its frame, in ms.
const steer = `(async () => {
	const canvas = document.querySelector('.world canvas');
	const took = [];
	for (const key of ['+', '+', 'ArrowLeft', 'ArrowUp', 'ArrowRight', 'ArrowDown', '-', '-', 'ArrowLeft', '+']) {
		const begin = performance.now();
		canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
		await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
		took.push(performance.now() - begin);
		await new Promise(done => setTimeout(done, 200));
	}
	took.sort((a, b) => a - b);
	return [took[took.length >> 1], took.at(-1)];
})()`

// BenchmarkMap measures the page with 20,000 offers: the first view, all offers on the map, and a key to the next frame.
func BenchmarkMap(b *testing.B) {
	const offers = 20_000
	page := openBrowser(b)
	address := manyOffers(b, offers)
	page.do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": fmt.Sprintf("globalThis.wanted = '%d offers';", offers) + watchFirstView})
	var first, all, frame, worst float64
	for b.Loop() {
		page.visit(address + "?" + fmt.Sprint(b.Elapsed().Nanoseconds()) + "#/map")
		page.until("seen.all !== undefined")
		first += page.eval("seen.first").(float64)
		all += page.eval("seen.all").(float64)
		keys := page.eval(steer).([]any)
		frame += keys[0].(float64)
		worst += keys[1].(float64)
	}
	n := float64(b.N)
	b.ReportMetric(first/n, "ms-first-view")
	b.ReportMetric(all/n, "ms-all-offers")
	b.ReportMetric(frame/n, "ms-key-to-frame")
	b.ReportMetric(worst/n, "ms-worst-key-to-frame")
}
