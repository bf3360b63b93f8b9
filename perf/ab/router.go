package ab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
)

// Own describes the routers that are started in this process, one for each run. A new router knows
// nothing of earlier runs.
type Own struct {
	Config   string   // a router's configuration file; empty: the defaults
	Backends []string // engines, in the form of --backend; none: those of Config
	Logger   *slog.Logger
	Key      bool // clients' keys go on to the engines
	// Patience is how long the engines have to become ready. Default 1 min.
	Patience time.Duration
	// Progress gets a line from time to time while engines are not ready. Progress may be nil.
	Progress io.Writer
}

// Check reports a configuration that no router would start with.
func (o *Own) Check(mode string) error {
	c, err := o.config(mode)
	if err != nil {
		return err
	}
	return config.Check(&c)
}

// config returns the settings of a router on free ports of loopback.
func (o *Own) config(mode string) (c router.Config, err error) {
	args := []string{"--mode", mode, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--drain-delay", "0s", "--drain-timeout", "5s"}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	for _, b := range o.Backends {
		args = append(args, "--backend", b)
	}
	if err := config.Load(&c, config.Options{Program: "cgn-router", Args: args}); err != nil {
		return c, err
	}
	c.Logger, c.Log.Access = o.Logger, ""
	c.TLS, c.Takeover.Start, c.Takeover.Socket = router.TLSConfig{}, false, "off"
	c.Router.ForwardAuth = c.Router.ForwardAuth || o.Key
	c.Limits.MaxConnections = min(c.Limits.MaxConnections, 4096) // fits into the usual limits of open files
	return c, nil
}

// Start starts a router in the given mode and waits until all its nodes take requests.
func (o *Own) Start(ctx context.Context, mode string) (*Site, error) {
	c, err := o.config(mode)
	if err != nil {
		return nil, err
	}
	r, err := router.New(c)
	if err != nil {
		return nil, err
	}
	force, kill := context.WithCancel(context.WithoutCancel(ctx))
	drain, stop := context.WithCancel(force)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(drain, force) }()
	site := &Site{URL: "http://" + r.Addr().String(), Stop: func() error {
		stop()
		defer kill()
		return <-ended
	}}
	if site.Nodes, err = o.ready(ctx, r.AdminAddr().String()); err != nil {
		return nil, errors.Join(err, site.Stop())
	}
	return site, nil
}

// waitLines is the number of lines of a wait that lasts as long as it may.
const waitLines = 12

// ready waits until every node of a router takes requests.
func (o *Own) ready(ctx context.Context, admin string) ([]Node, error) {
	patience := cmp.Or(o.Patience, time.Minute)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last, begun, line := "", time.Now(), 1
	for {
		nodes, missing := look(ctx, admin)
		if missing == "" {
			return nodes, nil
		}
		if ctx.Err() == nil {
			last = missing
		}
		if waited := time.Since(begun); o.Progress != nil && waited > time.Duration(line)*patience/waitLines {
			line = int(waited*waitLines/patience) + 1
			fmt.Fprintf(o.Progress, "waiting for the engines, %s of at most %s: %s\n", short(waited),
				short(patience), last)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("not every engine is ready after %s: %s", patience, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// look returns the nodes of a router, or what keeps them from taking requests.
func look(ctx context.Context, admin string) (nodes []Node, missing string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/debug/fleet", nil)
	if err != nil {
		return nil, err.Error()
	}
	_, page, err := send(req, "")
	if err != nil {
		return nil, err.Error()
	}
	var view struct {
		Nodes []struct {
			ID, Address, Reason string
			Eligible            bool
			LastError           string `json:"last_error"`
		}
		Problems []struct{ Subject, Reason string }
	}
	if err := json.Unmarshal(page, &view); err != nil {
		return nil, err.Error()
	}
	var problems []string
	for _, p := range view.Problems {
		problems = append(problems, p.Subject+": "+p.Reason)
	}
	for _, n := range view.Nodes {
		nodes = append(nodes, Node{n.ID, n.Address})
		if !n.Eligible {
			problems = append(problems, strings.TrimSpace(n.ID+": "+n.Reason+" "+n.LastError))
		}
	}
	if len(nodes) == 0 && problems == nil {
		return nil, "it has no node"
	}
	return nodes, strings.Join(problems, "; ")
}

// Running returns the site of a router that somebody else runs.
func Running(url string) *Site {
	return &Site{URL: url, Stop: func() error { return nil }}
}
