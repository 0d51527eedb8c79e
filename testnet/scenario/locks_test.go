package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client/fence"
)

func at(peer int, token fence.Token, asked, given, left time.Duration) hold {
	return hold{peer: peer, token: token, asked: asked, given: given, left: left, sure: true}
}

// TestCheck: each rule finds its violation, and separate groups may give the same tokens.
func TestCheck(t *testing.T) {
	met := span{50, 60}
	for name, c := range map[string]struct {
		all  []hold
		met  span
		want int
	}{
		"one after the other":               {[]hold{at(0, 3, 1, 2, 4), at(1, 5, 2, 6, 8)}, span{}, 0},
		"a token falls":                     {[]hold{at(0, 3, 1, 2, 4), at(1, 2, 5, 6, 8)}, span{}, 1},
		"two hold at once":                  {[]hold{at(0, 3, 1, 2, 9), at(1, 5, 2, 6, 8)}, span{}, 1},
		"two groups":                        {[]hold{at(0, 3, 1, 2, 9), at(1, 3, 3, 6, 8)}, met, 0},
		"one of two groups":                 {[]hold{at(0, 3, 1, 2, 4), at(0, 3, 5, 6, 8)}, met, 1},
		"below the other group after":       {[]hold{at(0, 9, 1, 2, 4), at(1, 8, 61, 62, 63)}, met, 1},
		"below one given meanwhile":         {[]hold{at(0, 9, 51, 52, 53), at(1, 8, 61, 62, 63)}, met, 1},
		"two hold after the groups are one": {[]hold{at(0, 9, 61, 62, 66), at(1, 10, 61, 63, 64)}, met, 1},
		"meanwhile":                         {[]hold{at(0, 9, 51, 52, 53), at(1, 8, 54, 55, 56)}, met, 0},
	} {
		t.Run(name, func(t *testing.T) { require.Len(t, check(c.all, c.met), c.want) })
	}
}
