package command

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/spelling"
)

// synonyms maps words of other programs to our commands.
func synonyms() map[string][]string {
	return map[string][]string{
		"start": {"run"}, "serve": {"run"}, "agent": {"run"}, "daemon": {"run"}, "up": {"run"},
		"join": {"run"}, "members": {"peer ls"}, "swarm": {"peer ls"}, "nodes": {"peer ls"},
		"catalog": {"service ls"}, "list": {"service ls"}, "discover": {"instance find"},
		"operator": {"group"}, "raft": {"group"}, "snapshot": {"group backup"}, "etcd": {"kv"}, "delete": {"kv del"},
		"search": {"offer find"}, "query": {"offer find"}, "publish": {"offer register"}, "provide": {"offer register"}, "records": {"offer ls"},
		"netcheck": {"doctor"}, "diag": {"doctor"}, "check": {"doctor"}, "troubleshoot": {"doctor"},
		"resolve": {"offer show", "dns"}, "validate": {"config show"}, "monitor": {"events", "log-level"}, "logs": {"log-level", "events"},
		"heartbeat": {"instance register"}, "info": {"status"}, "ping": {"status"}, "health": {"status"}, "session": {"lease"}, "mutex": {"lock"}, "elect": {"lock"},
	}
}

// meantCommands suggests commands for an unknown one: subcommands of cmd with a similar name, and at the root also their
// subcommands and our commands for words of other programs.
func meantCommands(cmd *cobra.Command, typed string) (found []string) {
	commands := map[string][]string{}
	for _, child := range cmd.Commands() {
		commands[child.Name()] = append(commands[child.Name()], child.Name())
	}
	if !cmd.HasParent() {
		maps.Copy(commands, synonyms())
		for _, child := range cmd.Commands() {
			for _, verb := range child.Commands() {
				commands[verb.Name()] = append(commands[verb.Name()], child.Name()+" "+verb.Name())
			}
		}
	}
	words := []string{typed}
	if commands[typed] == nil {
		words = spelling.Nearest(typed, slices.Collect(maps.Keys(commands)))
	}
	for _, word := range words {
		for _, command := range commands[word] {
			if !slices.Contains(found, command) {
				found = append(found, command)
			}
		}
	}
	return found
}
