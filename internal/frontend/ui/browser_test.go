package ui

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser is a headless Chromium with one page. It speaks the DevTools protocol over a pipe, so it needs no port.
type browser struct {
	t       testing.TB
	out     io.Writer
	session string

	mu      sync.Mutex
	last    int
	answers map[int]chan answer
	faults  []string // errors, exceptions and violations of the policy
}

// answer is a message of the browser.
type answer struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// open starts the browser, or skips the test on a machine without one.
func openBrowser(t testing.TB) *browser {
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: .ci/run installs it")
	}
	folder, err := os.MkdirTemp("", "browser")
	require.NoError(t, err)
	in, theirs, err := os.Pipe()
	require.NoError(t, err)
	ours, out, err := os.Pipe()
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--user-data-dir="+folder, "--remote-debugging-pipe", "about:blank")
	c.ExtraFiles = []*os.File{ours, theirs} // 3: commands, 4: answers
	require.NoError(t, c.Start())
	require.NoError(t, ours.Close())
	require.NoError(t, theirs.Close())
	b := &browser{t: t, out: out, answers: map[int]chan answer{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(in) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("faults of the page:", b.faults)
		}
		_ = c.Process.Kill()
		_ = c.Wait() // killed
		_ = out.Close()
		_ = in.Close()
		<-read
		_ = os.RemoveAll(folder) // its children may write for a moment
	})
	b.attach()
	return b
}

func (b *browser) read(in io.Reader) {
	lines := bufio.NewReader(in)
	for {
		text, err := lines.ReadBytes(0)
		if err != nil {
			return
		}
		var a answer
		if json.Unmarshal(text[:len(text)-1], &a) != nil {
			continue
		}
		b.mu.Lock()
		if done := b.answers[a.ID]; a.ID != 0 && done != nil {
			delete(b.answers, a.ID)
			done <- a
		}
		switch a.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded":
			if strings.Contains(string(a.Params), "NavigationEntryMarkedSkippable") {
				break // says that a script, and no reader, has followed a link
			}
			b.faults = append(b.faults, fmt.Sprintf("%s %.600s", a.Method, a.Params))
		}
		b.mu.Unlock()
	}
}

// do sends a command and returns its result.
func (b *browser) do(method string, params map[string]any) map[string]any {
	b.t.Helper()
	a := b.ask(method, params)
	require.Nil(b.t, a.Error, "%s: %v", method, a.Error)
	var result map[string]any
	require.NoError(b.t, json.Unmarshal(a.Result, &result))
	return result
}

// ask sends a command and returns its answer, which may be an error.
func (b *browser) ask(method string, params map[string]any) answer {
	b.t.Helper()
	b.mu.Lock()
	b.last++
	id, done := b.last, make(chan answer, 1)
	b.answers[id] = done
	b.mu.Unlock()
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	require.NoError(b.t, err)
	_, err = b.out.Write(append(text, 0))
	require.NoError(b.t, err)
	select {
	case a := <-done:
		return a
	case <-time.After(60 * time.Second):
		require.FailNow(b.t, "the browser does not answer", method)
		return answer{}
	}
}

func (b *browser) attach() {
	page := b.do("Target.createTarget", map[string]any{"url": "about:blank"})["targetId"]
	b.session = b.do("Target.attachToTarget", map[string]any{"targetId": page, "flatten": true})["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log", "Audits"} {
		b.do(domain+".enable", nil)
	}
	b.size(1440, 900)
}

func (b *browser) size(width, height int) {
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
}

// still asks for pages without movement.
func (b *browser) still() {
	b.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-reduced-motion", "value": "reduce"}}})
}

func (b *browser) dark(on bool) {
	scheme := "light"
	if on {
		scheme = "dark"
	}
	b.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

func (b *browser) visit(url string) { b.do("Page.navigate", map[string]any{"url": url}) }

// eval returns the value of an expression of the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	r := b.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	require.NotContains(b.t, r, "exceptionDetails", expression)
	return r["result"].(map[string]any)["value"]
}

// until waits for an expression to be true. The page asks the peer, so that no event tells when it is done.
func (b *browser) until(expression string) {
	b.t.Helper()
	b.eval(`new Promise((done, fail) => {
		const late = setTimeout(() => fail(new Error('waited in vain; the page shows: ' + document.body.innerText.slice(0, 1500))), 30000);
		const look = () => { let ok; try { ok = (` + expression + `); } catch { ok = false; } if (ok) { clearTimeout(late); done(true); } else setTimeout(look, 50); };
		look();
	})`)
}

// press waits for an element whose text begins so, and clicks it. The text may stand elsewhere in the page before the
// element is there.
func (b *browser) press(selector, text string) {
	b.t.Helper()
	script, err := json.Marshal([]string{selector, text})
	require.NoError(b.t, err)
	b.until("(([selector, text]) => { const found = [...document.querySelectorAll(selector)].find(e => e.textContent.startsWith(text)); found.click(); return true; })(" + string(script) + ")")
}

// reloads runs a statement that loads the page again, and waits for the new page.
func (b *browser) reloads(statement string) {
	b.t.Helper()
	b.eval("window.old = true, " + statement)
	require.Eventually(b.t, func() bool {
		a := b.ask("Runtime.evaluate", map[string]any{"expression": "window.old === undefined && document.readyState === 'complete'", "returnByValue": true})
		return a.Error == nil && strings.Contains(string(a.Result), "true")
	}, waitForPeer, pollEvery)
}

// text waits for a text in the page.
func (b *browser) text(want string) {
	b.t.Helper()
	quoted, err := json.Marshal(want)
	require.NoError(b.t, err)
	b.until("document.body.innerText.includes(" + string(quoted) + ")")
}

func (b *browser) key(name string) {
	for _, kind := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": kind, "key": name, "code": name}
		if name == "Enter" {
			params["text"], params["windowsVirtualKeyCode"] = "\r", 13
		}
		if code := map[string]int{"Tab": 9, "Escape": 27}[name]; code != 0 {
			params["windowsVirtualKeyCode"] = code
		}
		b.do("Input.dispatchKeyEvent", params)
	}
}

// clean fails the test after errors of the page since the last call.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.faults)
}
