package script

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestPlay: a script that does not hold tells its failure last, and nothing after it happens.
func TestPlay(t *testing.T) {
	said := ""
	words := Words{}
	words.Add("say", 1, func(args []string) error { said += args[0]; return nil })
	words.Add("refuse", 0, func([]string) error { return fault.New("x", fault.Conflict, "no luck") })
	play := func(text string) (string, bool) {
		log, held, err := Play(t.TempDir(), "a", text, words, func(cond string) (bool, error) { return cond == "yes", nil }, map[string]string{"who": "me"})
		require.NoError(t, err)
		return log, held
	}
	log, held := play("say $who\n[yes] say b\n[!yes] say c\n")
	require.True(t, held, log)
	require.Equal(t, "meb", said)
	for text, failure := range map[string]string{
		"refuse\nsay d\n": "no luck", "say\n": "say needs 1 arguments", "! say x\n": "no !", "sing\n": `unknown command "sing"`,
	} {
		log, held = play(text)
		require.False(t, held, text)
		require.Contains(t, log, failure)
	}
	require.Equal(t, "meb", said)
}
