package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
)

func lockList(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{
		Use: "ls [PREFIX]", Short: "List the locks that clients hold or wait for",
		Args: atMostOne("PREFIX"),
	}, defaultTimeout)
	return r.coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		var views []lockView
		for q := (client.LockQuery{Prefix: strings.Join(args, "")}); ; {
			states, _, err := c.Coordination().Locks(ctx, q)
			if err != nil {
				return renameField(err, "PREFIX")
			}
			if len(states) == 0 {
				break
			}
			for _, l := range states {
				views = append(views, showLock(l))
			}
			q.After = states[len(states)-1].Name
		}
		return r.print(document{value: map[string]any{"locks": emptied(views)}, items: itemsOf(views), table: lockTable(views)})
	})
}

// lockView is the JSON form of a lock.
type lockView struct {
	Name    string      `json:"name"`
	Holding []claimView `json:"holding"`
	Waiting []claimView `json:"waiting"`
	LeftOut int         `json:"left_out,omitempty"` // claims behind these
}

func showLock(l client.LockState) lockView {
	return lockView{Name: l.Name, Holding: showClaims(l.Holding), Waiting: showClaims(l.Waiting), LeftOut: l.LeftOut}
}

// claimView is the JSON form of a claim. Age is in seconds.
type claimView struct {
	Holder      string  `json:"holder_id"`
	Application string  `json:"application,omitempty"`
	Lease       string  `json:"lease_id"`
	Token       int64   `json:"fencing_token"`
	Mode        string  `json:"mode"`
	Permits     uint32  `json:"permits,omitempty"`
	Count       uint32  `json:"count"`
	Age         float64 `json:"age,omitempty"`
	Metadata    string  `json:"metadata,omitempty"`
}

func showClaims(claims []client.ClaimState) []claimView {
	views := make([]claimView, len(claims))
	for i, c := range claims {
		views[i] = claimView{
			Holder: c.Holder, Application: c.Application, Lease: leaseID(c.Lease), Token: int64(c.Token), Permits: c.Permits, Count: c.Count,
			Mode: "exclusive", Age: c.Age.Seconds(), Metadata: strings.ToValidUTF8(string(c.Metadata), "\ufffd"),
		}
		switch c.Mode {
		case client.ModeShared:
			views[i].Mode = "shared"
		case client.ModePermit:
			views[i].Mode = "permit"
		}
	}
	return views
}

// lockTable has a row for each claim: first the holders of a lock, then its waiters.
func lockTable(locks []lockView) grid {
	var rows [][]string
	for _, l := range locks {
		for state, claims := range [][]claimView{l.Holding, l.Waiting} {
			for _, c := range claims {
				mode := c.Mode
				if c.Permits > 0 {
					mode += " of " + strconv.FormatUint(uint64(c.Permits), 10)
				}
				rows = append(rows, []string{
					l.Name, []string{"holds", "waits"}[state], mode, strconv.FormatInt(c.Token, 10), orDash(c.Application), orDash(c.Holder), age(c.Age),
				})
			}
		}
		if l.LeftOut > 0 {
			rows = append(rows, []string{l.Name, "and " + strconv.Itoa(l.LeftOut) + " more", "-", "-", "-", "-", "-"})
		}
	}
	return table([]string{"LOCK", "STATE", "MODE", "TOKEN", "APPLICATION", "HOLDER", "AGE"}, rows)
}

// age shows seconds. Zero means unknown.
func age(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
