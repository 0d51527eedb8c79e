// Package environ has the environment variables with the prefix of the program that are no settings: those that it gives to
// commands, those that it reads itself, and those that Kubernetes makes for a service whose name begins like the prefix.
package environ

import (
	"regexp"
	"slices"
	"strings"
)

// Prefix begins the name of every variable, of settings too.
const Prefix = "BLACKHOLE_"

// Variables of the commands.
const (
	Context = Prefix + "CONTEXT" // a context with the peer to call
	Join    = Prefix + "JOIN"    // an invitation, for containers. It may stay set: a repeated join changes nothing
)

// Lock returns the variables of a command under a lock. deadline is a Unix time.
func Lock(name, token, lease, deadline string) []string {
	return []string{Prefix + "LOCK_NAME=" + name, Prefix + "LOCK_TOKEN=" + token, Prefix + "LOCK_LEASE=" + lease, Prefix + "LOCK_DEADLINE=" + deadline}
}

// Instance returns the variables of a command that is an instance.
func Instance(service, id, lease string) []string {
	return []string{Prefix + "SERVICE=" + service, Prefix + "INSTANCE_ID=" + id, Prefix + "LEASE=" + lease}
}

// Check returns the variables of a command that checks an instance.
func Check(namespace, service, id, host, port string) []string {
	return []string{
		Prefix + "NAMESPACE=" + namespace, Prefix + "SERVICE=" + service, Prefix + "ID=" + id, Prefix + "HOST=" + host, Prefix + "PORT=" + port,
	}
}

// own lists the variables that occur together.
func own() [][]string {
	sets := [][]string{{Context}, {Join}, Lock("", "", "", ""), Instance("", "", ""), Check("", "", "", "", "")}
	for _, set := range sets {
		for i := range set {
			set[i] = strings.TrimSuffix(set[i], "=")
		}
	}
	return sets
}

// IsForeign reports whether a variable of an environment is no setting, and no wrong name of one either. Variables that occur
// together count only if all are there: BLACKHOLE_HOST alone is a wrong BLACKHOLE_HOSTS.
func IsForeign(environ map[string]string, name string) bool {
	missing := func(name string) bool { _, ok := environ[name]; return !ok }
	for _, set := range own() {
		if slices.Contains(set, name) && !slices.ContainsFunc(set, missing) {
			return true
		}
	}
	return isLink(name, environ[name])
}

// isLink knows the variables of services in Kubernetes, which are those of links in Docker too.
func isLink(name, value string) bool {
	return regexp.MustCompile(`^(tcp|udp|sctp)://`).MatchString(value) ||
		regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)$`).MatchString(name)
}
