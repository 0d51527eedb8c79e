package ui

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPictures makes the pictures of the README from the page of a running testnet: PAGE_PEER is its address, as the
// testnet prints it. CONTRIBUTING.md has the commands.
func TestPictures(t *testing.T) {
	t.Parallel()
	address := os.Getenv("PAGE_PEER")
	if address == "" {
		t.Skip("PAGE_PEER names no page of a testnet")
	}
	const most = 150_000 // bytes of a picture
	b := openBrowser(t)
	at, err := url.Parse(address)
	require.NoError(t, err)
	p := &peer{t: t, http: at.Host}
	lease := fmt.Sprint(time.Now().UnixMilli())
	p.json("POST /v1/coordination/leases", `{"id": %q, "ttl": 30, "application": "release"}`, lease)
	p.json("POST /v1/coordination/locks/builds%2Frelease", `{"lease_id": %q}`, lease)
	for _, picture := range []struct{ name, view, ready string }{
		{"overview", "#/overview", "document.querySelectorAll('.legend li').length > 3 && document.querySelectorAll('.node.voter').length > 0 && document.querySelector('g.lock')"},
		{"search", "#/search?type=compute&near=Berlin&radius_km=2500&require_gpu=true", "document.querySelectorAll('td').length > 3"},
	} {
		b.size(1280, 860)
		b.visit(address + picture.view)
		b.until(picture.ready)
		b.until("document.querySelector('canvas').width > 0")
		b.eval("new Promise(done => setTimeout(done, 500))") // the map is drawn in the frame after its data
		shot := b.do("Page.captureScreenshot", map[string]any{"format": "webp", "quality": 82})
		text, err := base64.StdEncoding.DecodeString(shot["data"].(string))
		require.NoError(t, err)
		require.Less(t, len(text), most, picture.name)
		require.NoError(t, os.WriteFile(filepath.Join("../../../docs/images", picture.name+".webp"), text, 0o644))
	}
}
