package cognitorav1

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// TestGenerated fails when `make proto` was forgotten.
func TestGenerated(t *testing.T) {
	if _, err := exec.LookPath("protoc"); err != nil {
		t.Skip("protoc is not installed (apt-get install protobuf-compiler)")
	}
	out := filepath.Join(t.TempDir(), "set")
	if text, err := exec.Command("protoc", "-I", "../..", "--descriptor_set_out="+out, "cognitora/v1/kv.proto",
		"cognitora/v1/agent.proto").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(b, &set); err != nil {
		t.Fatal(err)
	}
	compiled := []protoreflect.FileDescriptor{File_cognitora_v1_kv_proto, File_cognitora_v1_agent_proto}
	if len(set.File) != len(compiled) {
		t.Fatalf("%d files", len(set.File))
	}
	for i, f := range compiled {
		if !proto.Equal(set.File[i], protodesc.ToFileDescriptorProto(f)) {
			t.Errorf("%s and the generated code differ: run make proto", f.Path())
		}
	}
}
