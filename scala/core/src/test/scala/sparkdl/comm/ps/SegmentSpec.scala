package sparkdl.comm.ps

import java.nio.ByteBuffer

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.CommException

class SegmentSpec extends AnyFunSuite {
  private val Window = 1L << 30

  test("views and copies that cross a window of the mapping") {
    Memory.withPath(Window + 4096) { path =>
      val segment = MappedSegment.map(path, Window + 4096)
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

  test("both sides see the same memory") {
    Memory.withPath(4096) { path =>
      val one = MappedSegment.map(path, 4096)
      val other = MappedSegment.map(path, 4096)
      one.put(100, ByteBuffer.wrap(Array[Byte](1, 2, 3)))
      assert(other.slices(100, 3).head.get(2) === 3)
      one.close()
      other.close()
    }
  }

  test("nothing outside the segment can be touched, and nothing after it is closed") {
    val segment = Memory.allocate(4096)
    intercept[IndexOutOfBoundsException](segment.slices(4000, 97))
    intercept[IndexOutOfBoundsException](segment.put(-1, ByteBuffer.allocate(1)))
    segment.close()
    assert(intercept[CommException](segment.access(())).kind === CommException.Closed)
  }

  test("a path that is no open memory file, or has another size, is refused") {
    assert(intercept[CommException](MappedSegment.map("/etc/passwd", 10)).kind === CommException.Protocol)
    Memory.withPath(4096)(path =>
      assert(intercept[CommException](MappedSegment.map(path, 8192)).kind === CommException.Protocol)
    )
  }
}
