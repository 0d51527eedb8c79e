package lab

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestJudge: an answer is wrong only about services that did not change during the question.
func TestJudge(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	s := service{registered: at(10), leaving: at(20), withdrawn: at(22)}
	for _, c := range []struct {
		asked, answered int
		lacking, having bool // wrong
	}{
		{5, 9, false, false},
		{9, 11, false, false}, // asked before the registration ended
		{11, 12, true, false},
		{19, 21, false, false},
		{21, 23, false, false}, // asked before the withdrawal ended
		{23, 24, false, true},
	} {
		lacking, _ := s.judge(false, at(c.asked), at(c.answered))
		having, _ := s.judge(true, at(c.asked), at(c.answered))
		require.Equal(t, c.lacking, lacking != "", "%+v", c)
		require.Equal(t, c.having, having != "", "%+v", c)
	}
}
