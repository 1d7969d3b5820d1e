// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.io.{EOFException, IOException}
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.nio.charset.StandardCharsets.UTF_8

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * Frames between a Python worker and its executor: four bytes of length, big-endian, then that many
 * bytes of JSON (one object, UTF-8). Before the first frame of a connection the worker sends the
 * bare token.
 */
private[bridge] object Frames {
  val MaxBytes: Int = 16 << 20

  private val mapper = new ObjectMapper

  def newObject(): ObjectNode = mapper.createObjectNode()

  def encode(message: JsonNode): ByteBuffer = {
    val body = mapper.writeValueAsBytes(message)
    val frame = ByteBuffer.allocate(4 + body.length)
    frame.putInt(body.length).put(body).flip()
    frame
  }

  def write(channel: SocketChannel, message: JsonNode): Unit = {
    val frame = encode(message)
    while (frame.hasRemaining) channel.write(frame)
  }

  /** Return the next frame, or None at the end of the stream. */
  def read(channel: SocketChannel): Option[JsonNode] = {
    val head = ByteBuffer.allocate(4)
    if (channel.read(head) < 0) None
    else {
      fill(channel, head)
      val length = head.flip().getInt
      if (length <= 0 || length > MaxBytes)
        throw new IOException(s"a frame has $length bytes; at most $MaxBytes are allowed")
      val body = ByteBuffer.allocate(length)
      fill(channel, body)
      val message = mapper.readTree(new String(body.array, UTF_8))
      if (!message.isObject)
        throw new IOException(s"a frame holds ${message.getNodeType}, expected an object")
      Some(message)
    }
  }

  def fill(channel: SocketChannel, buffer: ByteBuffer): Unit =
    while (buffer.hasRemaining)
      if (channel.read(buffer) < 0)
        throw new EOFException(s"the stream ended ${buffer.remaining} bytes early")
}
