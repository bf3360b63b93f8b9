package kvcached

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/cognitora/dataplane/kvcached/s3"
)

// maxS3Clients is the number of open connections; further ones wait.
const maxS3Clients = 16_384

// prepareS3 serves engines that use an object store.
func (d *Daemon) prepareS3() error {
	c := &d.config.S3
	if c.Listen == "" {
		return nil
	}
	keys, err := c.keys()
	if err != nil {
		return err
	}
	srv, err := s3.New(s3.Options{
		Sink: keyed{d.blocks("s3")}, Keys: keys, Domains: c.Domains, Durable: c.Durable, Asked: d.chunks.Asked,
		Timeout: c.Timeout.Std(), Logger: d.log, Audit: d.audit,
	})
	if err != nil {
		return err
	}
	conf, err := d.config.serverTLS(c.TLS)
	if err != nil {
		srv.Close()
		return err
	}
	l, where, err := openFor("s3.listen", "--s3", c.Listen, d.config.Daemon.Group)
	if err != nil {
		srv.Close()
		return err
	}
	front := &http.Server{Handler: srv, TLSConfig: conf, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	limited := netutil.LimitListener(l, maxS3Clients)
	d.metrics.s3 = srv
	d.add(&part{
		name: "s3", where: where, what: "a subset of S3",
		serve: func() error {
			err := error(nil)
			if conf != nil {
				err = front.ServeTLS(limited, "", "")
			} else {
				err = front.Serve(limited)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
		finish: func(ctx context.Context) error {
			defer srv.Close()
			err := front.Shutdown(ctx)
			if err != nil {
				err = fmt.Errorf("s3: connections were cut in the middle of a request: %w", err)
			}
			return errors.Join(err, front.Close())
		},
		close: func() { _ = l.Close(); srv.Close() },
	})
	return nil
}

func (c *S3Config) keys() ([]s3.Key, error) {
	var keys []s3.Key
	for i, k := range c.Keys {
		text, err := secret(fmt.Sprintf("s3.keys[%d].secret_file", i), k.SecretFile)
		if err != nil {
			return nil, err
		}
		keys = append(keys, s3.Key{Access: k.Access, Secret: text, Tenant: k.Tenant, ReadOnly: k.ReadOnly})
	}
	return keys, nil
}
