package sparkdl.comm.flow

import org.scalatest.funsuite.AnyFunSuite

class ChunkSizesSpec extends AnyFunSuite {
  private val Small = 16L << 10
  private val Large = 64L << 20

  private def chunk(mbits: Double, ofPeer: Double, block: Long): Int =
    ChunkSizes.chunk(mbits / 8000, ofPeer / 8000, block) >> 10

  test(
    "of small blocks what the link carries in 2 ms, or in half a millisecond if that is more, between 16 and 256 KiB"
  ) {
    val sizes = Seq(10, 27, 100, 200, 1000, 2000, 10000).map(mbits => chunk(mbits.toDouble, mbits.toDouble, Small))
    assert(sizes === Seq(16, 16, 16, 48, 64, 112, 256))
  }

  test("of large blocks up to 64 KiB on any link, but no more than their peer takes in 50 ms") {
    assert(Seq(0.0, 1.0, 6.0, 27.0).map(chunk(27, _, Large)) === Seq(64, 16, 32, 64))
    assert(Seq(100L, 512, 800, 2000).map(kibi => chunk(27, 27, kibi << 10)) === Seq(16, 32, 48, 64))
  }
}
