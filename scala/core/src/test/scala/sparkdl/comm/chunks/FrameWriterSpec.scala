// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer

import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

class FrameWriterSpec extends AnyFunSuite {
  test("a message that cannot be made closes the connection, and nothing is thrown") {
    val channel = new EmbeddedChannel
    def message: ByteBuffer = throw new OutOfMemoryError("no memory for a batch")
    val written = FrameWriter.write(channel, message)
    assert(written.cause.getMessage === "no memory for a batch")
    assert(!channel.isOpen)
  }
}
