// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import scala.util.Try

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.CommException

class SegmentSpec extends AnyFunSuite {
  private val Window = 1L << 30

  test("views and copies can cross windows of the mapping") {
    Memory.withPath(Window + 4096) { path =>
      val segment = Segment.map(path, Window + 4096)
      val values = Array.tabulate(64)(_ * 1.5f)
      segment.putFloats(Window - 128, values, 64)
      val back = new Array[Float](64)
      segment.getFloats(Window - 128, back, 64)
      assert(back === values)
      assert(segment.slices(Window - 128, 256).map(_.remaining) === Array(128, 128))
      segment.copy(Window - 128, Window + 1024, 256)
      segment.getFloats(Window + 1024, back, 64)
      assert(back === values)
      segment.close()
    }
  }

  test("both processes see the same memory") {
    Memory.withPath(4096) { path =>
      val one = Segment.map(path, 4096)
      val other = Segment.map(path, 4096)
      one.put(100, ByteBuffer.wrap(Array[Byte](1, 2, 3)))
      assert(other.slices(100, 3).head.get(2) === 3)
      one.close()
      other.close()
    }
  }

  test("access outside the segment, or after it is closed, is refused") {
    val segment = Segment.allocate(4096)
    intercept[IndexOutOfBoundsException](segment.slices(4000, 97))
    intercept[IndexOutOfBoundsException](segment.put(-1, ByteBuffer.allocate(1)))
    segment.close()
    assert(intercept[CommException](segment.access(())).kind === CommException.Closed)
  }

  private def refused(path: String, bytes: Long): String = {
    val ways = Seq[(String, Long) => Segment](Segment.map, Segment.read)
    val errors = ways.map(map => intercept[CommException](map(path, bytes)))
    assert(errors.forall(_.kind === CommException.Protocol))
    errors.map(_.getMessage).distinct.mkString
  }

  test("a path that is not an open memory file, or has another size, is refused") {
    assert(refused("/etc/passwd", 10).contains("/proc/PID/fd/N"))
    Memory.withPath(4096)(path =>
      assert(refused(path, 8192).contains("has 4096 bytes: expected 8192"))
    )
  }

  test("a file on disk is refused and stays unchanged") {
    val file = Files.createTempFile("sparkdl-test", ".segment")
    Files.write(file, Array.fill[Byte](10)(1))
    val open = FileChannel.open(file)
    try {
      val descriptors =
        Path.of(s"/proc/${ProcessHandle.current.pid}/fd").toFile.listFiles.map(_.toPath)
      val path = descriptors.find(link => Try(Files.isSameFile(link, file)).getOrElse(false)).get
      assert(refused(path.toString, 10).contains("is not a memory file"))
      assert(Files.readAllBytes(file) === Array.fill[Byte](10)(1))
    } finally {
      open.close()
      Files.delete(file)
    }
  }

  for (seals <- Seq("", "F_SEAL_GROW", "F_SEAL_GROW F_SEAL_SEAL"))
    test(s"memory that can be truncated is refused: seals $seals") {
      Memory.withPath(4096, seals)(path => assert(refused(path, 4096).contains("is not sealed")))
    }
}
