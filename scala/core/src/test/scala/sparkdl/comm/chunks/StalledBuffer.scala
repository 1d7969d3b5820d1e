// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.{ByteArrayInputStream, InputStream}
import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.util.AbstractFileRegion

/**
 * Answer of a server that stalls, as a stopped process does, when it has sent half of a chunk.
 *
 * @param half counted down when the server stalls
 * @param resume ends the stall when it is counted down
 */
final class StalledBuffer(bytes: Array[Byte], half: CountDownLatch, resume: CountDownLatch)
    extends ManagedBuffer {
  override def size: Long = bytes.length.toLong
  override def nioByteBuffer(): ByteBuffer = ByteBuffer.wrap(bytes)
  override def createInputStream(): InputStream = new ByteArrayInputStream(bytes)
  override def retain(): ManagedBuffer = this
  override def release(): ManagedBuffer = this
  def convertToNettyForSsl(): AnyRef = convertToNetty()

  override def convertToNetty(): AnyRef = new AbstractFileRegion {
    private val left = ByteBuffer.wrap(bytes).limit(bytes.length / 2)
    override def position: Long = 0
    override def count: Long = bytes.length.toLong
    override def transferred: Long = left.position().toLong
    override def deallocate(): Unit = ()
    override def transferTo(to: WritableByteChannel, position: Long): Long = {
      if (!left.hasRemaining) {
        half.countDown()
        if (!resume.await(60, TimeUnit.SECONDS))
          throw new IllegalStateException("a test left its server stalled")
        left.limit(bytes.length)
      }
      to.write(left).toLong
    }
  }
}
