// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import org.scalatest.funsuite.AnyFunSuite

class ChunkSizesSpec extends AnyFunSuite {
  private val Small = 16L << 10
  private val Large = 64L << 20

  private def chunk(mbits: Double, peerRate: Double, block: Long): Int =
    ChunkSizes.chunkBytes(mbits / 8000, peerRate / 8000, block) >> 10

  test(
    "chunks of small blocks have 2 ms of the link up to 64 KiB, or half a millisecond of it, from" +
      " 16 to 256 KiB"
  ) {
    val sizes = Seq(10, 27, 100, 200, 1000, 2000, 10000).map(mbits =>
      chunk(mbits.toDouble, mbits.toDouble, Small)
    )
    assert(sizes === Seq(16, 16, 16, 48, 64, 112, 256))
  }

  test(
    "chunks of large blocks have up to 64 KiB on any link, but no more than their peer takes in" +
      " 50 ms"
  ) {
    assert(Seq(0.0, 1.0, 6.0, 27.0).map(chunk(27, _, Large)) === Seq(64, 16, 32, 64))
    assert(Seq(100L, 512, 800, 2000).map(kibi => chunk(27, 27, kibi << 10)) === Seq(16, 32, 48, 64))
  }
}
