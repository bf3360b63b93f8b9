package s3

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestClients runs boto3, awscrt, aws-sdk-go-v2 and minio-go against a server without keys, with
// keys, and with TLS.
func TestClients(t *testing.T) {
	if os.Getenv("CGN_KV_CLIENTS") == "" {
		t.Skip("needs python3 with venv and the network on the first run; CGN_KV_CLIENTS=1 runs it")
	}
	key := Key{Access: "AKIDEXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG", Tenant: "acme"}
	for _, name := range []string{"open", "keys", "tls"} {
		t.Run(name, func(t *testing.T) {
			o := Options{Sink: arena(t, 1<<30)}
			env := os.Environ()
			if name != "open" {
				o.Keys = []Key{key}
				env = append(env, "S3_ACCESS_KEY="+key.Access, "S3_SECRET_KEY="+key.Secret)
			}
			b := serve(t, o)
			endpoint := b.http.URL
			if name == "tls" {
				secure := httptest.NewTLSServer(b.server)
				defer secure.Close()
				endpoint = secure.URL
				path := filepath.Join(t.TempDir(), "ca.pem")
				text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
				if err := os.WriteFile(path, text, 0o600); err != nil {
					t.Fatal(err)
				}
				env = append(env, "S3_CA_FILE="+path)
			}
			c := exec.Command("../../perf/kvclients/s3/run.sh", endpoint)
			c.Env = env
			out, err := c.CombinedOutput()
			t.Logf("%s\n%+v", out, b.server.Stats())
			if err != nil {
				t.Error(err)
			}
		})
	}
}
