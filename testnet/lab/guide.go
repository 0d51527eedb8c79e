package lab

import (
	"regexp"
	"strings"
)

// instruction is one command of a document, with what it prints.
type instruction struct {
	command string
	printed []string
}

// commands returns the commands of a document's console blocks, without their comments, in order.
func commands(text string) (all []instruction) {
	comment, inside := regexp.MustCompile(` +# .*$`), false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside && is:
			all = append(all, instruction{command: comment.ReplaceAllString(command, "")})
		case inside && len(all) > 0:
			all[len(all)-1].printed = append(all[len(all)-1].printed, line)
		}
	}
	return all
}
