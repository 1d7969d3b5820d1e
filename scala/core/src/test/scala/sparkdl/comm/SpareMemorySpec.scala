// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.nio.file.{Files, Path}

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.transport.ChunkPeer

class SpareMemorySpec extends AnyFunSuite {
  private def rank(host: String, port: Int, ofHost: Long, ofExecutor: Long = Long.MaxValue) =
    (ChunkPeer(host, port, s"$port"), SpareMemory(ofHost, ofExecutor))

  private def write(folder: Path, name: String, text: String): Unit = {
    Files.createDirectories(folder)
    Files.writeString(folder.resolve(name), text)
  }

  test("ranks of a host share its memory, and the least that one of them saw counts") {
    val ranks = Seq(rank("a", 1, 300), rank("a", 2, 200), rank("b", 1, 100))
    assert(SpareMemory.shortage(100, ranks) === None)
    assert(SpareMemory.shortage(101, ranks).exists(_.contains("each of 2 ranks of a host")))
    assert(SpareMemory.shortage(101, ranks.tail.tail).exists(_.contains("only 100 bytes are free")))
    val unknown = Seq.fill(3)(rank("a", 1, Long.MaxValue))
    assert(SpareMemory.shortage(1L << 40, unknown) === None)
  }

  test("ranks of an executor share its container") {
    val ranks = Seq(rank("a", 1, 900, 200), rank("a", 1, 900, 200), rank("a", 2, 900, 100))
    assert(SpareMemory.shortage(100, ranks) === None)
    assert(SpareMemory.shortage(101, ranks).exists(_.contains("spark.executor.memoryOverhead")))
  }

  test("the memory of this host and of a container is found") {
    val SpareMemory(host, executor) = SpareMemory.now(None)
    assert(host > 0 && host < Long.MaxValue && executor === Long.MaxValue)
    val heap = Runtime.getRuntime.maxMemory
    assert(SpareMemory.now(Some(heap)).executor === 0, "classes take memory too")
    val roomy = SpareMemory.now(Some(heap + (8L << 30))).executor
    assert(roomy > 0 && roomy < (4L << 30))
  }

  test("a limit of a cgroup counts without what can be reclaimed") {
    val root = Files.createTempDirectory("cgroup")
    assert(SpareMemory.ofCgroup(root) === None)
    write(root, "memory.max", "max\n")
    write(root, "memory.current", "1000\n")
    assert(SpareMemory.ofCgroup(root) === None, "no limit")
    val limit = 1L << 45
    write(root, "memory.max", s"$limit\n")
    val without = SpareMemory.ofCgroup(root).get
    assert(without <= limit - 1000)
    write(root, "memory.stat", "anon 600\ninactive_file 400\n")
    assert(SpareMemory.ofCgroup(root).get >= without - (64 << 20) + 400)
    val old = Files.createTempDirectory("cgroup1")
    write(old.resolve("memory"), "memory.limit_in_bytes", s"$limit\n")
    write(old.resolve("memory"), "memory.usage_in_bytes", "1000\n")
    assert(SpareMemory.ofCgroup(old).exists(_ <= limit - 1000))
  }

  test("the memory that the kernel can give is read from its file") {
    val file = Files.createTempFile("meminfo", "")
    Files.writeString(file, "MemTotal:  9000 kB\nMemAvailable:    7 kB\nHugePages_Total:  0\n")
    assert(SpareMemory.available(file) === Some(7 * 1024))
    assert(SpareMemory.available(file.resolveSibling("none")) === None)
  }
}
