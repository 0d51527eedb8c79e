package ui

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPictures makes the pictures of the documents from the pages of a running testnet: PAGE_PEER has the addresses of some of its
// peers, with commas between them. The first has the page. A lock goes from peer to peer while the picture of the
// overview is taken. CONTRIBUTING.md has the commands.
func TestPictures(t *testing.T) {
	t.Parallel()
	if os.Getenv("PAGE_PEER") == "" {
		t.Skip("PAGE_PEER names no page of a testnet")
	}
	var peers []*peer
	for _, address := range strings.Split(os.Getenv("PAGE_PEER"), ",") {
		at, err := url.Parse(address)
		require.NoError(t, err)
		peers = append(peers, &peer{t: t, http: at.Host})
	}
	b, page := openBrowser(t), peers[0]
	b.size(1280, 860)
	b.visit(page.url("#/search?type=compute&near=Berlin&radius_km=2500&require_gpu=true"))
	b.until("document.querySelectorAll('td').length > 3 && document.querySelector('canvas').width > 0")
	b.eval("new Promise(done => setTimeout(done, 500))") // the map is drawn in the frame after its data
	keep(t, "search", 150_000, b.picture(nil, 82))

	lease := func(n int) string { return fmt.Sprint(time.Now().UnixMilli()/1000*10 + int64(n)) }
	hold := func(n int, id string) {
		p := peers[n%len(peers)]
		p.json("POST /v1/coordination/leases", `{"id": %q, "ttl": 30, "application": "release"}`, id)
		p.json("POST /v1/coordination/locks/builds%2Frelease", `{"lease_id": %q}`, id)
	}
	held := lease(0)
	hold(0, held)
	b.visit(page.url("#/overview"))
	b.until("document.querySelectorAll('.legend li').length > 3 && document.querySelectorAll('.node.voter').length > 0 && document.querySelector('g.lock')")
	film := newFilm(1280, 860)
	film.add(0, 0, b.picture(nil, 82), time.Second/2)
	box := b.eval("(({ x, y, width, height }) => [x, y, width, height].map(n => Math.ceil(n / 2) * 2))(document.querySelector('.topology').getBoundingClientRect())").([]any)
	x, y := int(box[0].(float64)), int(box[1].(float64))
	clip := map[string]any{"x": x, "y": y, "width": box[2], "height": box[3], "scale": 1}
	const moves, framesOfMove = 3, 7
	for n := range moves {
		p := peers[n%len(peers)]
		p.json("DELETE /v1/coordination/leases/"+held, "")
		held = lease(n + 1)
		hold(n+1, held)
		b.until(fmt.Sprintf("document.querySelector('.key .last').textContent.includes('lock builds/release') && document.querySelector('.key .last').textContent !== %q", film.caption))
		film.caption = b.eval("document.querySelector('.key .last').textContent").(string)
		for range framesOfMove {
			began := time.Now()
			shot := b.picture(clip, 60)
			film.add(x, y, shot, time.Since(began)+100*time.Millisecond)
			b.eval("new Promise(done => setTimeout(done, 60))")
		}
		film.rest(time.Second)
	}
	keep(t, "overview", 300_000, film.bytes())
}

func keep(t *testing.T, name string, most int, picture []byte) {
	require.Less(t, len(picture), most, name)
	require.NoError(t, os.WriteFile(filepath.Join("../../../docs/images", name+".webp"), picture, 0o644))
}

// picture is the page, or a part of it, as WebP.
func (b *browser) picture(clip map[string]any, quality int) []byte {
	b.t.Helper()
	params := map[string]any{"format": "webp", "quality": quality}
	if clip != nil {
		params["clip"] = clip
	}
	text, err := base64.StdEncoding.DecodeString(b.do("Page.captureScreenshot", params)["data"].(string))
	require.NoError(b.t, err)
	return text
}

// film joins pictures in WebP's format of moving ones. Each covers a part of those before.
type film struct {
	width, height int
	frames        [][]byte
	caption       string // that the page showed last
}

func newFilm(width, height int) *film { return &film{width: width, height: height} }

// chunk is a part of a file of WebP.
func chunk(name string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint32([]byte(name), uint32(len(data)))
	out = append(out, data...)
	return append(out, make([]byte, len(data)%2)...)
}

func uint24(n int) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16)} }

// add puts a picture at an even place. Its bits follow the head of its own file.
func (f *film) add(x, y int, picture []byte, lasts time.Duration) {
	const head = len("RIFF....WEBP")
	bits := picture[head:]
	for string(bits[:4]) != "VP8 " { // other chunks say what the film says itself
		bits = bits[8+binary.LittleEndian.Uint32(bits[4:8]):]
	}
	const frame = 8 + 6 // the head of the chunk, and the begin of its bits
	width, height := binary.LittleEndian.Uint16(bits[frame:])&0x3fff, binary.LittleEndian.Uint16(bits[frame+2:])&0x3fff
	const over = 2 // it covers what was there, without blending
	f.frames = append(f.frames, bytes.Join([][]byte{
		uint24(x / 2), uint24(y / 2), uint24(int(width) - 1), uint24(int(height) - 1), uint24(int(lasts.Milliseconds())), {over}, bits,
	}, nil))
}

// rest makes the last picture last longer.
func (f *film) rest(longer time.Duration) {
	last := f.frames[len(f.frames)-1]
	const at = 12 // of the duration
	ms := int(last[at]) | int(last[at+1])<<8 | int(last[at+2])<<16
	copy(last[at:], uint24(ms+int(longer.Milliseconds())))
}

func (f *film) bytes() []byte {
	const moves = 0x02
	all := append([]byte("WEBP"), chunk("VP8X", bytes.Join([][]byte{{moves, 0, 0, 0}, uint24(f.width - 1), uint24(f.height - 1)}, nil))...)
	all = append(all, chunk("ANIM", make([]byte, 6))...) // it begins again for ever
	for _, frame := range f.frames {
		all = append(all, chunk("ANMF", frame)...)
	}
	return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(all))), all...)
}
