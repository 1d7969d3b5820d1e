// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import io.netty.buffer.UnpooledByteBufAllocator
import io.netty.channel.RecvByteBufAllocator
import io.netty.channel.socket.nio.NioSocketChannel
import org.scalatest.funsuite.AnyFunSuite

class DirectReadAllocatorSpec extends AnyFunSuite {

  /**
   * Return the bytes of the next reads of a socket that always has more, and whether another read
   * follows at once.
   */
  private def reads(channel: NioSocketChannel): Seq[(Int, Boolean)] = {
    val handle = channel.config.getRecvByteBufAllocator[RecvByteBufAllocator]().newHandle()
    handle.reset(channel.config)
    (1 to 20).map { _ =>
      val buffer = handle.allocate(UnpooledByteBufAllocator.DEFAULT)
      val bytes = buffer.writableBytes
      buffer.release()
      handle.attemptedBytesRead(bytes)
      handle.lastBytesRead(bytes)
      handle.incMessagesRead(1)
      (bytes, handle.continueReading())
    }
  }

  test("before the first fetch, reads are as large as without the allocator") {
    val channel = new NioSocketChannel
    try {
      val usual = reads(channel)
      assert(
        usual.map(_._1).max > usual.head._1 && usual.map(_._2).distinct === Seq(true, false),
        "the test needs reads that grow and end"
      )
      DirectReadAllocator.install(channel)
      assert(DirectReadAllocator.installedOn(channel).isDefined)
      assert(reads(channel) === usual)
    } finally channel.unsafe.closeForcibly()
  }
}
