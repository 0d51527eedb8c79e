package coordination

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
)

func lockList(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{
		Use: "ls [PREFIX]", Short: "List the locks that clients hold or wait for",
		Args: command.AtMostOne("PREFIX"),
	}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		var views []LockView
		for q := (client.LockQuery{Prefix: strings.Join(args, "")}); ; {
			states, _, err := c.Coordination().Locks(ctx, q)
			if err != nil {
				return exit.Rename(err, "PREFIX")
			}
			if len(states) == 0 {
				break
			}
			for _, l := range states {
				views = append(views, ShowLock(l))
			}
			q.After = states[len(states)-1].Name
		}
		return r.Print(term.Document{Value: map[string]any{"locks": term.Emptied(views)}, Items: term.Items(views), Table: LockTable(views)})
	})
}

// LockView is the JSON form of a lock.
type LockView struct {
	Name    string      `json:"name"`
	Holding []ClaimView `json:"holding"`
	Waiting []ClaimView `json:"waiting"`
	LeftOut int         `json:"left_out,omitempty"` // claims behind these
}

// ShowLock returns the JSON form of a lock.
func ShowLock(l client.LockState) LockView {
	return LockView{Name: l.Name, Holding: showClaims(l.Holding), Waiting: showClaims(l.Waiting), LeftOut: l.LeftOut}
}

// ClaimView is the JSON form of a claim. Age is in seconds.
type ClaimView struct {
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

func showClaims(claims []client.ClaimState) []ClaimView {
	views := make([]ClaimView, len(claims))
	for i, c := range claims {
		views[i] = ClaimView{
			Holder: c.Holder, Application: c.Application, Lease: LeaseID(c.Lease), Token: int64(c.Token), Permits: c.Permits, Count: c.Count,
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

// LockTable has a row for each claim: first the holders of a lock, then its waiters.
func LockTable(locks []LockView) term.Grid {
	var rows [][]string
	for _, l := range locks {
		for state, claims := range [][]ClaimView{l.Holding, l.Waiting} {
			for _, c := range claims {
				mode := c.Mode
				if c.Permits > 0 {
					mode += " of " + strconv.FormatUint(uint64(c.Permits), 10)
				}
				rows = append(rows, []string{
					l.Name, []string{"holds", "waits"}[state], mode, strconv.FormatInt(c.Token, 10), term.OrDash(c.Application), term.OrDash(c.Holder), Age(c.Age),
				})
			}
		}
		if l.LeftOut > 0 {
			rows = append(rows, []string{l.Name, "and " + strconv.Itoa(l.LeftOut) + " more", "-", "-", "-", "-", "-"})
		}
	}
	return term.Table([]string{"LOCK", "STATE", "MODE", "TOKEN", "APPLICATION", "HOLDER", "AGE"}, rows)
}

// Age shows seconds. Zero means unknown.
func Age(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
