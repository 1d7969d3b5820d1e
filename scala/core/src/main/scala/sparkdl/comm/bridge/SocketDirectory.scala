// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.SocketChannel
import java.nio.file.{Files, LinkOption, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.TimeUnit

import org.apache.spark.internal.Logging

/** Directory of the bridge's socket, which only this user can enter. */
private[bridge] object SocketDirectory extends Logging {
  val SocketName = "bridge"
  private val Prefix = "sparkdl-"

  /**
   * Maximum length of the parent's path in bytes. The path of a Unix socket has at most 107 bytes.
   * The names of this directory and of the socket need some of them.
   */
  private val MaxParentBytes = 60

  /**
   * Return the parent of sockets' directories: the JVM's directory for temporary files, or /tmp if
   * its path is too long.
   */
  def parent(temporary: String): Path =
    Paths.get(if (temporary.getBytes.length <= MaxParentBytes) temporary else "/tmp")

  def create(parent: Path): Path =
    Files.createTempDirectory(
      parent,
      Prefix,
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    )

  /**
   * Remove the directories of killed executors beside `own`. [[create]] made them for the same
   * user, and their socket does not answer. Other users may put anything else there, also links.
   */
  def sweep(own: Path, nowMillis: Long = System.currentTimeMillis): Unit = {
    val ours = Inode(own)
    val found = Files.newDirectoryStream(own.getParent, Prefix + "*")
    try
      found.forEach { left =>
        val abandoned = left.resolve(SocketName)
        try
          if (
            Inode(left) == ours && Inode(abandoned).isSocket && isOld(
              left,
              nowMillis
            ) && !isListening(abandoned)
          ) {
            Files.deleteIfExists(abandoned)
            Files.deleteIfExists(left)
          }
        catch { case e: java.io.IOException => logDebug(s"$left stays: $e") }
      }
    finally found.close()
  }

  /** Mode, as stat(2) returns it, and owner of a path itself, not of what it links to. */
  private final case class Inode(mode: Int, owner: Int) {
    def isSocket: Boolean = (mode & 0xf000) == 0xc000
  }

  private object Inode {
    def apply(path: Path): Inode = {
      val found = Files.readAttributes(path, "unix:mode,uid", LinkOption.NOFOLLOW_LINKS)
      Inode(found.get("mode").asInstanceOf[Int], found.get("uid").asInstanceOf[Int])
    }
  }

  /** Return true if the directory is old. A bridge that is still starting does not answer. */
  private def isOld(directory: Path, nowMillis: Long): Boolean =
    Files.getLastModifiedTime(directory).toMillis < nowMillis - TimeUnit.MINUTES.toMillis(1)

  /**
   * Return true if a process listens on the socket. Do not wait for it: a stopped process whose
   * queue is full never accepts. Only a refused connection shows that no process listens.
   */
  private def isListening(path: Path): Boolean = {
    val visitor = SocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      visitor.configureBlocking(false)
      visitor.connect(UnixDomainSocketAddress.of(path))
      true
    } catch {
      case _: java.net.ConnectException => false
      case _: java.net.SocketException => true
    } finally visitor.close()
  }
}
