package term

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/clean"
)

// Clean makes text safe for a terminal line, because parts of it come from strangers: control
// characters could move the cursor, and format characters could reorder the text.
func Clean(s string) string { return clean.Text(s, math.MaxInt) }

// Named shows a peer by the name that it gives itself, with its id, which alone is sure.
func Named(id, name string) string {
	if id == "" || name == "" {
		return OrDash(id)
	}
	return name + " (" + id + ")"
}

// Offset shows a difference of clocks in tenths of a second.
func Offset(seconds float64) string {
	if math.Abs(seconds) < 0.05 {
		return "0.0 s"
	}
	return fmt.Sprintf("%+.1f s", seconds)
}

// Millis shows milliseconds. Zero means unknown.
func Millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}

// OrDash shows a missing value as "-".
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// ShortPeer is the end of a peer id: all ids of one key type share their beginning.
func ShortPeer(id string) string {
	const keep = 8
	if r := []rune(id); len(r) > keep {
		return "…" + string(r[len(r)-keep:])
	}
	return OrDash(id)
}

// Means reports whether a text stands for a peer: its whole id, the end of it as in tables, or the name that it gives itself.
func Means(text, peer, name string) bool {
	const least = 6 // shorter ends are no names
	end := strings.TrimPrefix(text, "…")
	return text == peer || text == name || len(end) >= least && strings.HasSuffix(peer, end)
}

// At shows a time in UTC, or "-" for none.
func At(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// Number shows a number with all its digits and no more.
func Number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ShortPeers abbreviates the peer ids in a text.
func ShortPeers(text string) string {
	const length = 52 // of the base58 form of an Ed25519 key
	words := strings.Split(text, " ")
	for i, w := range words {
		if len(w) == length && strings.HasPrefix(w, "12D3KooW") {
			words[i] = ShortPeer(w)
		}
	}
	return strings.Join(words, " ")
}
