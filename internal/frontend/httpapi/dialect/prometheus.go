package dialect

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/instance"
)

// AppendTargets appends instances as Prometheus' HTTP service discovery takes them: one group
// each, since their labels differ. Those without an address have none to be asked at.
//
// Metadata metrics_port, metrics_path and metrics_scheme say where an instance has its metrics,
// if not at its port, /metrics and http.
func AppendTargets(dst []byte, list []*instance.Instance) []byte {
	dst = append(dst, '[')
	first := true
	for _, i := range list {
		if i.Host == "" {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		port := strconv.Itoa(i.Port)
		if given := i.Metadata["metrics_port"]; given != "" {
			port = given
		}
		dst = appendArray(append(dst, `{"targets":`...), []string{net.JoinHostPort(i.Host, port)})
		dst = appendStrings(append(dst, `,"labels":`...), labels(i))
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// labels are those before relabelling: __meta_blackhole_ and the name of the field.
func labels(i *instance.Instance) map[string]string {
	const prefix = "__meta_blackhole_"
	l := make(map[string]string, 16+len(i.Metadata))
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		l[prefix+"metadata_"+sanitized(k)] = i.Metadata[k]
	}
	maps.Copy(l, map[string]string{
		prefix + "service": i.Service, prefix + "namespace": i.Namespace, prefix + "id": i.ID,
		prefix + "health": i.Status.String(), prefix + "weight": strconv.Itoa(max(i.Weight, instance.DefaultWeight)),
		prefix + "version": i.Version, prefix + "zone": i.Zone, prefix + "environment": i.Environment,
		prefix + "region": i.Region, prefix + "owner": i.Owner, prefix + "tags": wrapped(i.Tags),
		"__metrics_path__": i.Metadata["metrics_path"], "__scheme__": i.Metadata["metrics_scheme"],
	})
	maps.DeleteFunc(l, func(_, value string) bool { return value == "" })
	return l
}

// wrapped has a comma on either side of each, so that a pattern finds any.
func wrapped(tags []string) string {
	if len(tags) == 0 {
		return ""
	}
	return "," + strings.Join(tags, ",") + ","
}

// sanitized is a name that labels may have; two that become one are the last of them.
func sanitized(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			return c
		}
		return '_'
	}, name)
}

// Change is one of the changes of a watch in dialect A.
type Change struct {
	Type     string   `json:"type"` // ADDED, MODIFIED or DELETED: no longer in the result
	Instance Instance `json:"instance"`
	Revision uint64   `json:"revision"`
}

// AppendChanges appends the changes of a batch, {"index":..,"events":[..]}.
func AppendChanges(dst []byte, b instance.Batch) []byte {
	names := [...]string{instance.Added: "ADDED", instance.Modified: "MODIFIED", instance.Removed: "DELETED"}
	dst = strconv.AppendUint(append(dst, `{"index":`...), b.Index, 10)
	dst = append(dst, `,"events":[`...)
	for n, e := range slices.All(b.Events) {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"`...)
		dst = append(dst, names[e.Type]...)
		dst = Append(append(dst, `","instance":`...), e.Instance)
		dst = strconv.AppendUint(append(dst, `,"revision":`...), e.Revision, 10)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}
