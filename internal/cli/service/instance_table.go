package service

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// instanceJSON is the form of an instance in the API, with the id of its lease.
func instanceJSON(i *instance.Instance) *instance.DetailJSON {
	d := i.Detail(time.Time{})
	d.LeaseID = i.Lease
	return d
}

// InstanceList shows instances. The JSON form is value with the instances added.
func InstanceList(all []*instance.Instance, value map[string]any) term.Document {
	views, rows := make([]*instance.DetailJSON, len(all)), make([][]string, len(all))
	for n, i := range all {
		views[n], rows[n] = instanceJSON(i), instanceRow(i)
	}
	value["instances"] = views
	return term.Document{Value: value, Items: term.Items(views), Table: term.Table(instanceHeader(), rows)}
}

func instanceHeader() []string {
	return []string{"ID", "STATUS", "ADDRESS", "VERSION", "ZONE", "TAGS", "PEER"}
}

func instanceRow(i *instance.Instance) []string {
	return []string{
		i.ID, i.Status.String(), AddressOf(i), term.OrDash(i.Spec.Version), term.OrDash(i.Spec.Zone), term.OrDash(strings.Join(i.Spec.Tags, " ")), term.ShortPeer(i.Peer),
	}
}

// AddressOf shows the address of an instance, or the number of interfaces without an address.
func AddressOf(i *instance.Instance) string {
	switch {
	case i.Spec.Host != "":
		return net.JoinHostPort(i.Spec.Host, strconv.Itoa(i.Spec.Port))
	case len(i.Spec.Interfaces) > 0:
		return fmt.Sprintf("%d interfaces", len(i.Spec.Interfaces))
	}
	return "-"
}

// lastChecks returns how the last checks of an instance ended, newest first, or else who knows it.
func lastChecks(ctx context.Context, c *client.Client, i *instance.Instance) (ends []instance.LastCheck, note string, err error) {
	if i.Spec.Check == nil {
		return nil, "", nil
	}
	ends, err = client.OperatorOf(c).LastChecks(ctx, i.Key)
	switch kind := fault.KindOf(err); {
	case kind == fault.Unsupported, err == nil && len(ends) == 0:
		return nil, fmt.Sprintf("none known here: peer %s checks it, so ask there with --grpc", term.ShortPeer(i.Peer)), nil
	case kind == fault.Forbidden:
		return nil, "known to the role admin", nil
	}
	return ends, "", err
}

// checkRows shows the last checks, newest first.
func checkRows(ends []instance.LastCheck, note string) [][]string {
	if note != "" {
		return [][]string{{"last check", note}}
	}
	var rows [][]string
	label := "last check"
	for _, e := range ends {
		end := fmt.Sprintf("passed in %.0f ms", e.TookMs)
		if !e.Passing {
			end = fmt.Sprintf("failed in %.0f ms: %s", e.TookMs, e.Cause)
		}
		rows = append(rows, []string{label, fmt.Sprintf("%s %s, %s", term.At(e.At), instance.Status(e.Status), end)})
		label = "before"
	}
	return rows
}

// OneInstance shows one instance with its last checks.
func OneInstance(ctx context.Context, c *client.Client, i *instance.Instance) (term.Document, error) {
	ends, note, err := lastChecks(ctx, c, i)
	if err != nil {
		return term.Document{}, err
	}
	return instanceDetail(i, ends, note), nil
}

// instanceDetail shows the non-empty fields of one instance, and its last checks or who knows them.
func instanceDetail(i *instance.Instance, ends []instance.LastCheck, note string) term.Document {
	override, check := "", "none: heartbeats keep the instance"
	if i.Override != instance.StatusUnknown {
		override = i.Override.String()
	}
	if c := i.Spec.Check; c != nil {
		check = strings.Join(strings.Fields(fmt.Sprintf("%s %s every %s", c.Type, c.Endpoint, c.Interval)), " ")
	}
	rows := [][]string{
		{"service", i.Service}, {"namespace", i.Namespace}, {"id", i.ID}, {"status", i.Status.String()}, {"override", override},
		{"address", AddressOf(i)}, {"version", i.Spec.Version}, {"zone", i.Spec.Zone}, {"weight", strconv.Itoa(i.Spec.Weight)},
		{"tags", strings.Join(i.Spec.Tags, " ")}, {"interfaces", assignments(i.Spec.Interfaces)}, {"metadata", assignments(i.Spec.Metadata)},
		{"depends on", strings.Join(i.Spec.Dependencies, " ")}, {"environment", i.Spec.Environment}, {"region", i.Spec.Region}, {"owner", i.Spec.Owner},
		{"check", check}, {"thresholds", fmt.Sprintf("unhealthy after %s, removed after %s", i.Spec.UnhealthyAfter, i.Spec.RemoveAfter)},
		{"registered", term.At(i.RegisteredAt)}, {"lease", i.Lease}, {"peer", i.Peer},
	}
	rows = slices.DeleteFunc(append(rows, checkRows(ends, note)...), func(row []string) bool { return row[1] == "" })
	value := instanceJSON(i)
	value.LastChecks = ends
	return term.Document{Value: value, Table: term.Pairs(rows)}
}

// assignments shows a map as NAME=VALUE in one line.
func assignments(m map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, k+"="+m[k])
	}
	return strings.Join(words, " ")
}
