package power

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
)

// Bounds on the work that a BMC can cause.
const (
	maxAnswer   = 1 << 20 // bytes of one document
	maxMembers  = 64      // chassis, and power supplies of one chassis
	maxSupplies = 32
	readLimit   = time.Minute     // time limit of one reading with the search for the chassis
	logoutLimit = 2 * time.Second // the BMC ends a session by itself if the logout fails
	lookAgain   = time.Hour       // how long the list of the chassis and its supplies is used
)

var (
	errRefused = errors.New("the BMC refuses the account, or what it asks for; check power.redfish.username, its " +
		"password_file and its role at the BMC")
	errStatus = errors.New("the BMC answers")
)

// bmc reads one BMC. One goroutine uses a bmc.
type bmc struct {
	config *RedfishConfig
	http   *http.Client
	fence  *fence
	client *gofish.APIClient // nil: no session
	plan   *plan             // nil: not made yet
}

// plan lists the documents to read.
type plan struct {
	made        time.Time
	environment link   // document with the chassis' PowerWatts
	supplies    []link // metrics of each supply
	power       link   // document of the older schema, with both figures
}

func newBMC(c *RedfishConfig) (*bmc, error) {
	fence, err := c.transport()
	if err != nil {
		return nil, err
	}
	return &bmc{config: c, fence: fence, http: &http.Client{
		Transport: fence,
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > 3 {
				return errors.New("the BMC redirects again and again")
			}
			return nil // the transport keeps redirects on the same host
		},
	}}, nil
}

// read returns the power of the chassis and of its power supplies.
func (b *bmc) read(ctx context.Context) (watts [components]float64, known [components]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	b.fence.turn = ctx
	c, p, err := b.measure()
	if errors.Is(err, errUnauthorized) { // the BMC has ended the session
		b.logout()
		if c, p, err = b.measure(); errors.Is(err, errUnauthorized) {
			b.logout()
			err = errRefused
		}
	}
	if err != nil {
		b.plan = nil
	}
	watts[chassis], known[chassis] = c.watts, c.known
	watts[psu], known[psu] = p.watts, p.known
	return watts, known, err
}

func (b *bmc) measure() (chassis, psu reading, err error) {
	if b.client == nil {
		if err := b.login(); err != nil {
			return chassis, psu, err
		}
	}
	if b.plan == nil || time.Since(b.plan.made) > lookAgain {
		if b.plan, err = b.look(); err != nil {
			return chassis, psu, err
		}
	}
	chassis, psu, err = b.follow(b.plan)
	if err == nil && !chassis.known && !psu.known {
		err = errors.New("the BMC tells no power now")
	}
	return chassis, psu, err
}

func (b *bmc) login() error {
	c := gofish.ClientConfig{Endpoint: strings.TrimRight(b.config.Address, "/"), Username: b.config.Username,
		HTTPClient: b.http}
	if b.config.PasswordFile != "" {
		var err error
		if c.Password, err = readPassword(b.config.PasswordFile); err != nil {
			return fmt.Errorf("power.redfish.password_file: %w", err)
		}
	}
	client, err := gofish.ConnectContext(context.Background(), c) // fence holds the context of the requests
	if err = plain(err); errors.Is(err, errUnauthorized) {
		return errRefused
	}
	if err == nil {
		b.client = client
	}
	return err
}

// logout ends the session, because BMCs have few.
func (b *bmc) logout() {
	if b.client != nil {
		b.client.Logout()
		b.client = nil
	}
}

func (b *bmc) close() {
	ctx, cancel := context.WithTimeout(context.Background(), logoutLimit)
	defer cancel()
	b.fence.turn = ctx
	b.logout()
	b.http.CloseIdleConnections()
}

// get reads one document.
func (b *bmc) get(path link, into any) error {
	if path == "" {
		return fmt.Errorf("a document of the BMC lacks a link: %w", errMissing)
	}
	resp, err := b.client.Get(string(path))
	if err != nil {
		return fmt.Errorf("%s: %w", path, plain(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, plain(err))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: the BMC's document is no JSON object", path)
	}
	return nil
}

var (
	errUnauthorized = errors.New("the BMC answers 401 or 403")
	errMissing      = errors.New("the BMC has no such document")
)

// plain shortens an error of gofish, which would contain the whole answer.
func plain(err error) error {
	var answer *common.Error
	var at *url.Error
	var late interface{ Timeout() bool }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &late) && late.Timeout():
		return errors.New("the BMC does not answer in time; power.redfish.timeout says how long it has")
	case errors.As(err, &answer):
		switch answer.HTTPReturnedStatusCode {
		case 0:
			return errors.New("the BMC's answer breaks off")
		case http.StatusUnauthorized, http.StatusForbidden:
			return errUnauthorized
		case http.StatusNotFound, http.StatusMethodNotAllowed:
			return errMissing
		}
		return fmt.Errorf("%w %d", errStatus, answer.HTTPReturnedStatusCode)
	case errors.As(err, &at):
		return at.Err
	}
	if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
		return errors.New("the BMC's service root is no Redfish document")
	}
	return err
}
