// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.channels.ScatteringByteChannel

import scala.jdk.CollectionConverters._

import io.netty.buffer.{ByteBuf, ByteBufAllocator, UnpooledHeapByteBuf}
import io.netty.channel.{Channel, ChannelInboundHandler, RecvByteBufAllocator}
import io.netty.channel.RecvByteBufAllocator.DelegatingHandle
import io.netty.channel.socket.nio.NioSocketChannel

import org.apache.spark.network.util.TransportFrameDecoder

/**
 * Allocator of receive buffers that has bytes read from the socket directly into the target of
 * their fetch. Netty then passes on a buffer that only counts the bytes, so that Spark's library
 * proceeds as if it had them. All calls come from the connection's event loop.
 *
 * @param usual allocator until the first fetch begins. If the data must be decrypted, it is used
 *    for good
 */
private[chunks] final class DirectReadAllocator(usual: RecvByteBufAllocator)
    extends RecvByteBufAllocator {
  import DirectReadAllocator._

  private var hasBegun = false
  private var current: Option[PendingFetch] = None

  /**
   * Read directly from now on. The next [[PendingFetch.missingBytes]] bytes all belong to this
   * fetch.
   */
  def begin(fetch: PendingFetch): Unit = {
    hasBegun = true
    current = Some(fetch)
  }

  def end(): Unit = current = None

  override def newHandle() = new Reader

  final class Reader extends DelegatingHandle(usual.newHandle()) {
    override def allocate(allocator: ByteBufAllocator): ByteBuf =
      if (hasBegun)
        current.filter(_.missingBytes > 0).fold(allocator.ioBuffer(ReadBytes))(new CountingBuffer(
          allocator,
          _
        ))
      else super.allocate(allocator)
    override def continueReading(): Boolean = !hasBegun && super.continueReading()
  }
}

private[chunks] object DirectReadAllocator {

  /**
   * Bytes of an ordinary read. It is small, as bytes that arrive together with the head of an
   * answer must be copied.
   */
  private val ReadBytes = 1 << 14
  private val MostBytes = 1 << 20

  /**
   * Array that all counting buffers share. Nobody reads it: the bytes that they count are in the
   * fetch's target.
   */
  private val Scrap = new Array[Byte](MostBytes)

  /** Read at most `maxCount` bytes and drop them. */
  def drop(from: ScatteringByteChannel, maxCount: Int): Int =
    from.read(ByteBuffer.wrap(Scrap, 0, math.min(maxCount, MostBytes)))

  private final class CountingBuffer(allocator: ByteBufAllocator, fetch: PendingFetch)
      extends UnpooledHeapByteBuf(allocator, Scrap, MostBytes) {
    private val begin = MostBytes - math.min(fetch.missingBytes, MostBytes)
    setIndex(begin, begin)
    override def setBytes(index: Int, from: ScatteringByteChannel, length: Int): Int =
      fetch.read(from, length)
  }

  /**
   * Install the allocator. Call it before the first read, which authentication makes: Netty keeps
   * the allocator of that read.
   */
  def install(channel: Channel): Unit = channel match {
    case socket: NioSocketChannel =>
      socket.config.setRecvByteBufAllocator(new DirectReadAllocator(allocator(socket)))
    case _ => ()
  }

  /**
   * Return the channel's allocator. None if data is decrypted on its way, or if it is another kind
   * of socket.
   */
  def installedOn(channel: Channel): Option[DirectReadAllocator] = {
    val first =
      channel.pipeline.asScala.takeWhile(_.getKey != TransportFrameDecoder.HANDLER_NAME).map(
        _.getValue
      )
    val plain = !first.exists(_.isInstanceOf[ChannelInboundHandler])
    allocator(channel) match {
      case reads: DirectReadAllocator if plain => Some(reads)
      case _ => None
    }
  }

  private def allocator(channel: Channel): RecvByteBufAllocator =
    channel.config.getRecvByteBufAllocator[RecvByteBufAllocator]()
}
